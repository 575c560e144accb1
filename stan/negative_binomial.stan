// y ~ NB(mu, phi) with mean mu and variance mu + mu^2/phi ([V], section 3), on distinct outcomes with summed alpha.
// Prior: log mu ~ N(0, log_mu_sd^2), phi ~ Gamma(phi_shape, phi_rate).
//
// log mu and log phi are measured from moment estimates: constant Jacobian.
functions {
  vector log_lik_of(vector y, real log_mu, real phi) {
    real mu = exp(log_mu);
    return lgamma(y + phi) - lgamma(phi) - lgamma(y + 1) - phi * log1p(mu / phi) + y * (log_mu - log(mu + phi));
  }
}
data {
  int<lower=0> M; // distinct outcomes
  vector<lower=0>[M] value;
  vector<lower=0>[M] total; // sums of alpha of the records with this outcome
  real<lower=0> log_mu_sd;
  real<lower=0> phi_shape;
  real<lower=0> phi_rate;
  int<lower=0> N; // records with a clamped likelihood; none in ordinary fits
  vector<lower=0>[N] y;
  vector<lower=0>[N] alpha;
  vector[N] reference; // log density under reference parameters: what f is centred at
  real<lower=0> clamp;
}
transformed data {
  real n = sum(total);
  real sum_y = dot_product(total, value);
  real sum_log_factorial = dot_product(total, lgamma(value + 1));
  real centre_mu;
  real centre_phi;
  real scale_mu;
  real scale_phi;
  {
    real all = n + sum(alpha) + 1;
    real m = (sum_y + dot_product(alpha, y) + 1) / all;
    real v = (dot_product(total, square(value - m)) + dot_product(alpha, square(y - m)) + m) / all;
    real phi = fmin(fmax(square(m) / fmax(v - m, 1e-3 * m), 0.01), 100);
    centre_mu = log(m);
    centre_phi = log(phi);
    scale_mu = sqrt((1 / m + 1 / phi) / all);
    scale_phi = fmin(sqrt(2 * (1 + 1 / phi) / all), 1);
  }
}
parameters {
  real<offset=centre_mu, multiplier=scale_mu> log_mu;
  real<offset=centre_phi, multiplier=scale_phi> log_phi;
}
transformed parameters {
  real mu = exp(log_mu);
  real phi = exp(log_phi);
}
model {
  log_mu ~ normal(0, log_mu_sd);
  phi ~ gamma(phi_shape, phi_rate);
  target += log_phi; // d phi / d log_phi
  target += dot_product(total, lgamma(value + phi)) - n * lgamma(phi) - sum_log_factorial - n * phi * log1p(mu / phi)
            + sum_y * (log_mu - log(mu + phi));
  if (N > 0) {
    target += sum(fmin(fmax(alpha .* (log_lik_of(y, log_mu, phi) - reference), -clamp), clamp));
  }
}
generated quantities {
  vector[N] log_lik = log_lik_of(y, log_mu, phi);
}
