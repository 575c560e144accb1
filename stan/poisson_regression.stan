// y | x ~ Poisson(exp(x'beta)), beta ~ N(0, diag(sigma_beta) Omega diag(sigma_beta)), sigma_beta ~ half Student t(3, 0, 1),
// Omega ~ LKJ(6) ([V], Appendix 2).
//
// The coefficients are measured from the weighted least squares fit to log mean counts: constant Jacobian.
functions {
  vector log_lik_of(vector y, vector eta) {
    return y .* eta - exp(eta) - lgamma(y + 1);
  }
}
data {
  int<lower=1> P; // patterns of predictors
  int<lower=1> K;
  matrix[P, K] X;
  vector<lower=0>[P] total; // sums of alpha
  vector<lower=0>[P] sum_y; // sums of alpha y
  int<lower=0> N; // records with a clamped likelihood; none in ordinary fits
  array[N] int<lower=1, upper=P> pattern;
  vector<lower=0>[N] y;
  vector<lower=0>[N] alpha;
  vector[N] reference; // log density under reference parameters: what f is centred at
  real<lower=0> clamp;
}
transformed data {
  vector[K] centre;
  matrix[K, K] R;
  {
    vector[P] count = total;
    vector[P] mass = sum_y;
    for (i in 1 : N) {
      count[pattern[i]] += alpha[i];
      mass[pattern[i]] += alpha[i] * y[i];
    }
    vector[P] information = mass + 0.5 * count;
    matrix[K, K] gram = add_diag(X' * diag_pre_multiply(information, X), 1);
    R = inverse(cholesky_decompose(gram))';
    centre = R * R' * (X' * (information .* log((mass + 0.5) ./ (count + 0.5))));
  }
}
parameters {
  vector[K] unit_beta;
  vector<lower=0>[K] sigma_beta;
  cholesky_factor_corr[K] L_beta;
}
transformed parameters {
  vector[K] beta = centre + R * unit_beta;
}
model {
  vector[P] eta = X * beta;
  L_beta ~ lkj_corr_cholesky(6);
  sigma_beta ~ student_t(3, 0, 1);
  beta ~ multi_normal_cholesky(rep_vector(0, K), diag_pre_multiply(sigma_beta, L_beta));
  target += dot_product(sum_y, eta) - dot_product(total, exp(eta)); // but for the constant -sum of alpha lgamma(y + 1)
  if (N > 0) {
    target += sum(fmin(fmax(alpha .* (log_lik_of(y, eta[pattern]) - reference), -clamp), clamp));
  }
}
generated quantities {
  vector[N] log_lik = log_lik_of(y, (X * beta)[pattern]);
}
