// y ~ Poisson(rate), rate ~ Gamma(prior_shape, prior_rate): the outcome-only synthesizer of [V] with a conjugate prior.
//
// log rate is measured from the posterior's centre in units of its sd: constant Jacobian.
functions {
  vector log_lik_of(vector y, real log_rate) {
    return y * log_rate - exp(log_rate) - lgamma(y + 1);
  }
}
data {
  real<lower=0> total; // sum of alpha
  real<lower=0> sum_y; // sum of alpha y
  real<lower=0> prior_shape;
  real<lower=0> prior_rate;
  int<lower=0> N; // records with a clamped likelihood; none in ordinary fits
  vector<lower=0>[N] y;
  vector<lower=0>[N] alpha;
  vector[N] reference; // log density under reference parameters: what f is centred at
  real<lower=0> clamp;
}
transformed data {
  real shape = prior_shape + sum_y + dot_product(alpha, y);
  real centre = log(shape / (prior_rate + total + sum(alpha)));
}
parameters {
  real<offset=centre, multiplier=inv_sqrt(shape)> log_rate;
}
transformed parameters {
  real rate = exp(log_rate);
}
model {
  rate ~ gamma(prior_shape, prior_rate);
  target += log_rate; // d rate / d log_rate
  target += sum_y * log_rate - total * rate; // but for the constant -sum of alpha lgamma(y + 1)
  if (N > 0) {
    target += sum(fmin(fmax(alpha .* (log_lik_of(y, log_rate) - reference), -clamp), clamp));
  }
}
generated quantities {
  vector[N] log_lik = log_lik_of(y, log_rate);
}
