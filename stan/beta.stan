// y ~ Beta(lambda phi, lambda (1 - phi)), phi ~ Beta(1, 1), lambda ~ Pareto(0.1, 1.5) ([G], Supplement 2).
functions {
  vector log_lik_of(vector log_y, vector log1m_y, real a, real b) {
    return (a - 1) * log_y + (b - 1) * log1m_y - lbeta(a, b);
  }
}
data {
  real<lower=0> total; // sum of alpha
  real<upper=0> sum_log; // sum of alpha log y
  real<upper=0> sum_log1m; // sum of alpha log(1 - y)
  int<lower=0> N; // records with a clamped likelihood; none in ordinary fits
  vector<lower=0, upper=1>[N] y;
  vector<lower=0>[N] alpha;
  vector[N] reference; // log density under reference parameters: what f is centred at
  real<lower=0> clamp;
}
transformed data {
  vector[N] log_y = log(y);
  vector[N] log1m_y = log1m(y);
}
parameters {
  real<lower=0, upper=1> phi;
  real<lower=0.1> lambda;
}
transformed parameters {
  real a = lambda * phi;
  real b = lambda * (1 - phi);
}
model {
  phi ~ beta(1, 1);
  lambda ~ pareto(0.1, 1.5);
  target += (a - 1) * sum_log + (b - 1) * sum_log1m - total * lbeta(a, b);
  if (N > 0) {
    target += sum(fmin(fmax(alpha .* (log_lik_of(log_y, log1m_y, a, b) - reference), -clamp), clamp));
  }
}
generated quantities {
  vector[N] log_lik = log_lik_of(log_y, log1m_y, a, b);
}
