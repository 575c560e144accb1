// y ~ Bernoulli(probability), probability ~ Beta(prior_a, prior_b) (METHODS 5b).
functions {
  vector log_lik_of(vector y, real probability) {
    return y * log(probability) + (1 - y) * log1m(probability);
  }
}
data {
  real<lower=0> total; // sum of alpha
  real<lower=0, upper=total> sum_y; // sum of alpha y
  real<lower=0> prior_a;
  real<lower=0> prior_b;
  int<lower=0> N; // records with a clamped likelihood; none in ordinary fits
  vector<lower=0, upper=1>[N] y;
  vector<lower=0>[N] alpha;
  vector[N] reference; // log density under reference parameters: what f is centred at
  real<lower=0> clamp;
}
parameters {
  real<lower=0, upper=1> probability;
}
model {
  probability ~ beta(prior_a, prior_b);
  target += sum_y * log(probability) + (total - sum_y) * log1m(probability);
  if (N > 0) {
    target += sum(fmin(fmax(alpha .* (log_lik_of(y, probability) - reference), -clamp), clamp));
  }
}
generated quantities {
  vector[N] log_lik = log_lik_of(y, probability);
}
