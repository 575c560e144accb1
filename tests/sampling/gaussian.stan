// A normal mean with its exact posterior, independent entries of a matrix about known places, and a constant diagonal.
data {
  int<lower=0> n;
  vector[n] y;
  real<lower=0> sigma;
  matrix[2, 3] place;
}
parameters {
  real mu;
  matrix[2, 3] z;
}
transformed parameters {
  matrix[2, 2] R = [[1, tanh(mu)], [tanh(mu), 1]];
}
model {
  target += normal_lpdf(mu | 0, 10);
  target += normal_lpdf(y | mu, sigma);
  target += normal_lpdf(to_vector(z) | to_vector(place), 1);
}
generated quantities {
  vector[n] log_lik;
  real noise = normal_rng(0, 1);
  for (i in 1:n)
    log_lik[i] = normal_lpdf(y[i] | mu, sigma);
}
