// log y ~ N(mu, sigma^2): a user's program under a mechanism that clamps. `wrong` spoils the clamp: tests need one that does.
data {
  int<lower=0> N;
  vector<lower=0>[N] y;
  vector<lower=0>[N] alpha;
  vector[N] reference;
  real<lower=0> clamp;
  int<lower=0, upper=2> wrong;
  int<lower=0, upper=1> generate;
}
transformed data {
  vector[N] z = log(y);
  int G = generate ? N : 0;
}
parameters {
  real mu;
  real<lower=0> sigma;
}
model {
  vector[N] f = -0.5 * log(2 * pi()) - log(sigma) - 0.5 * square((z - mu) / sigma);
  real width = wrong == 1 ? 1.1 * clamp : clamp;
  target += normal_lpdf(mu | 10, 3);
  target += lognormal_lpdf(sigma | -1, 0.7);
  target += sum(fmin(fmax(alpha .* (f - (wrong == 2 ? 0 * reference : reference)), -width), width));
}
generated quantities {
  vector[G] log_lik;
  vector[G] y_rep;
  for (n in 1 : G) {
    log_lik[n] = normal_lpdf(z[n] | mu, sigma);
    y_rep[n] = exp(normal_rng(mu, sigma));
  }
}
