// y ~ share NB(mu, phi[1]) + (1 - share) NB(mu, phi[2]), phi[1] < phi[2], with one mean mu and variances mu + mu^2/phi (the
// simulated law of [V], section 3), on distinct outcomes with summed alpha.
// Prior: log mu ~ N(0, log_mu_sd^2), log phi ~ N(log_phi_mean, log_phi_sd^2) in order, share ~ Beta(share_shape, share_shape).
//
// log mu is measured from the weighted mean: constant Jacobian.
functions {
  vector log_lik_of(vector y, real log_mu, vector phi, real share) {
    int n = num_elements(y);
    vector[n] found;
    real mu = exp(log_mu);
    vector[n] first = lgamma(y + phi[1]) - lgamma(phi[1]) - phi[1] * log1p(mu / phi[1]) + y * (log_mu - log(mu + phi[1]));
    vector[n] second = lgamma(y + phi[2]) - lgamma(phi[2]) - phi[2] * log1p(mu / phi[2]) + y * (log_mu - log(mu + phi[2]));
    for (i in 1 : n) {
      found[i] = log_mix(share, first[i], second[i]);
    }
    return found - lgamma(y + 1);
  }
}
data {
  int<lower=0> M; // distinct outcomes
  vector<lower=0>[M] value;
  vector<lower=0>[M] total; // sums of alpha of the records with this outcome
  real<lower=0> log_mu_sd;
  real log_phi_mean;
  real<lower=0> log_phi_sd;
  real<lower=0> share_shape;
  int<lower=0> N; // records with a clamped likelihood; none in ordinary fits
  vector<lower=0>[N] y;
  vector<lower=0>[N] alpha;
  vector[N] reference; // log density under reference parameters: what f is centred at
  real<lower=0> clamp;
}
transformed data {
  real centre_mu;
  real scale_mu;
  {
    real all = sum(total) + sum(alpha) + 1;
    real m = (dot_product(total, value) + dot_product(alpha, y) + 1) / all;
    centre_mu = log(m);
    scale_mu = sqrt((1 / m + exp(-log_phi_mean)) / all);
  }
}
parameters {
  real<offset=centre_mu, multiplier=scale_mu> log_mu;
  ordered[2] log_phi;
  real<lower=0, upper=1> share; // of the more dispersed kind
}
transformed parameters {
  real mu = exp(log_mu);
  vector[2] phi = exp(log_phi);
}
model {
  log_mu ~ normal(0, log_mu_sd);
  log_phi ~ normal(log_phi_mean, log_phi_sd);
  share ~ beta(share_shape, share_shape);
  target += dot_product(total, log_lik_of(value, log_mu, phi, share));
  if (N > 0) {
    target += sum(fmin(fmax(alpha .* (log_lik_of(y, log_mu, phi, share) - reference), -clamp), clamp));
  }
}
generated quantities {
  vector[N] log_lik = log_lik_of(y, log_mu, phi, share);
}
