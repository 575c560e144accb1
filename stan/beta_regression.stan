// y | x ~ Beta(lambda phi(x), lambda (1 - phi(x))), logit phi(x) = x'coefficients ([G], section 5).
// Prior: coefficients ~ N(0, prior_sd^2) independently, lambda ~ Pareto(0.1, 1.5) as in program `beta`.
//
// The coefficients are measured from the weighted least squares fit to logit y: constant Jacobian.
functions {
  vector log_lik_of(vector log_y, vector log1m_y, vector phi, real lambda) {
    vector[rows(phi)] a = lambda * phi;
    return (a - 1) .* log_y + (lambda - a - 1) .* log1m_y - lgamma(a) - lgamma(lambda - a) + lgamma(lambda);
  }
}
data {
  int<lower=1> P; // patterns of predictors
  int<lower=1> K;
  matrix[P, K] X;
  vector<lower=0>[P] total; // sums of alpha
  vector<upper=0>[P] sum_log; // sums of alpha log y
  vector<upper=0>[P] sum_log1m; // sums of alpha log(1 - y)
  real<lower=0> prior_sd;
  int<lower=0> N; // records with a clamped likelihood; none in ordinary fits
  array[N] int<lower=1, upper=P> pattern;
  vector<lower=0, upper=1>[N] y;
  vector<lower=0>[N] alpha;
  vector[N] reference; // log density under reference parameters: what f is centred at
  real<lower=0> clamp;
}
transformed data {
  vector[N] log_y = log(y);
  vector[N] log1m_y = log1m(y);
  vector[K] centre;
  matrix[K, K] R;
  {
    matrix[N, K] x = X[pattern];
    matrix[K, K] gram = add_diag(X' * diag_pre_multiply(total, X) + x' * diag_pre_multiply(alpha, x),
                                 inv_square(prior_sd));
    R = inverse(cholesky_decompose(gram))';
    centre = R * R' * (X' * (sum_log - sum_log1m) + x' * (alpha .* (log_y - log1m_y)));
  }
}
parameters {
  vector[K] unit_coefficients;
  real<lower=0.1> lambda;
}
transformed parameters {
  vector[K] coefficients = centre + R * unit_coefficients;
}
model {
  vector[P] phi = inv_logit(X * coefficients);
  vector[P] a = lambda * phi;
  vector[P] b = lambda - a;
  coefficients ~ normal(0, prior_sd);
  lambda ~ pareto(0.1, 1.5);
  target += dot_product(a - 1, sum_log) + dot_product(b - 1, sum_log1m) - dot_product(total, lgamma(a) + lgamma(b))
            + sum(total) * lgamma(lambda);
  if (N > 0) {
    target += sum(fmin(fmax(alpha .* (log_lik_of(log_y, log1m_y, phi[pattern], lambda) - reference), -clamp), clamp));
  }
}
generated quantities {
  vector[N] log_lik = log_lik_of(log_y, log1m_y, inv_logit(X * coefficients)[pattern], lambda);
}
