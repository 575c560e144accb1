// FBP: in the population log y | x ~ N(x'beta, sigma_y^2) and log pi | y, x ~ N(kappa_y log y + x'kappa_x, sigma_pi^2),
// w = 1/pi; a sampled record has the likelihood pi p(log y, log w | x) / E(pi | x) ([T]; METHODS 5), with
// log E(pi | x) = x'kappa_x + kappa_y x'beta + (kappa_y^2 sigma_y^2 + sigma_pi^2) / 2.
//
// The prior is that of program `lognormal` on the sample law's (B, Sigma), carried over. The sample law is N2(B'x, Sigma) with
//   Sigma_yy = sigma_y^2, Sigma_yw = -kappa_y sigma_y^2, Sigma_ww = kappa_y^2 sigma_y^2 + sigma_pi^2, |Sigma| = sigma_y^2 sigma_pi^2,
//   B_y = beta - a Sigma_yw, B_w = -kappa_x - kappa_y beta - a Sigma_ww,  X a = 1 (a is the intercept's unit vector).
// Jacobian: (beta, kappa_x) -> B has determinant of size 1; (sigma_y, kappa_y, sigma_pi) -> (Sigma_yy, Sigma_yw, Sigma_ww) is
// triangular with 2 sigma_y, sigma_y^2, 2 sigma_pi: 4 sigma_y^3 sigma_pi. The improper |Sigma|^(-3/2) becomes sigma_pi^(-2).
//
// Parameters are measured from the regressions of log y on x and of -log w on (log y, x): constant Jacobian.
functions {
  vector log_lik_of(vector log_y, vector log_w, vector mean_y, vector x_kappa, real sigma_y, real kappa_y, real sigma_pi) {
    return -log(2 * pi()) - log(sigma_y) - log(sigma_pi) - 0.5 * square((log_y - mean_y) / sigma_y)
           - 0.5 * square((log_w + kappa_y * log_y + x_kappa) / sigma_pi) - log_w
           - (x_kappa + kappa_y * mean_y + 0.5 * (square(kappa_y * sigma_y) + square(sigma_pi)));
  }
}
data {
  int<lower=1> P; // patterns of predictors
  int<lower=1> K; // coefficients of a component
  matrix[P, K] X; // its first column is the intercept
  vector<lower=0>[P] total; // sums of alpha
  matrix[P, 2] sum_z; // sums of alpha (log y, log w)
  matrix[2, 2] sum_zz; // sum of alpha z z', over patterns
  real<lower=0> prior_power;
  matrix[2, 2] prior_scale;
  matrix[K, 2] prior_location;
  matrix[K, K] prior_precision;
  int<lower=0> N; // records with a clamped likelihood; none in ordinary fits
  array[N] int<lower=1, upper=P> pattern;
  vector[N] log_outcome;
  vector[N] log_weight;
  vector<lower=0>[N] alpha;
  vector[N] reference; // log density under reference parameters: what f is centred at
  real<lower=0> clamp;
}
transformed data {
  real n = sum(total);
  matrix[K, K] gram = X' * diag_pre_multiply(total, X);
  matrix[K, 2] cross = X' * sum_z;
  vector[K] row = X' * total; // sum of alpha x
  matrix[K, 2] B0; // the fit to statistics, records and prior together
  matrix[K, K] R; // root of its (X'AX)^-1
  matrix[2, 2] S; // its covariance
  matrix[K, 2] slope; // half the gradient of the residual square at B0
  matrix[2, 2] residual; // residual square of the statistics at B0
  {
    matrix[N, K] x = X[pattern];
    matrix[N, 2] z = append_col(log_outcome, log_weight);
    matrix[K, 2] all_cross = cross + prior_precision * prior_location + x' * diag_pre_multiply(alpha, z);
    matrix[2, 2] all_square = sum_zz + prior_scale + quad_form(prior_precision, prior_location)
                              + z' * diag_pre_multiply(alpha, z);
    R = inverse(cholesky_decompose(gram + prior_precision + x' * diag_pre_multiply(alpha, x)))';
    B0 = R * R' * all_cross;
    S = (all_square - B0' * all_cross) / (n + sum(alpha) + prior_power);
  }
  slope = cross - gram * B0;
  residual = sum_zz - B0' * cross - slope' * B0;
  real kappa_0 = -S[1, 2] / S[1, 1];
  real s_y = sqrt(S[1, 1]);
  real s_pi = sqrt(S[2, 2] - square(S[1, 2]) / S[1, 1]);
  real s_kappa = s_pi / s_y / sqrt(n + sum(alpha) + prior_power);
}
parameters {
  vector[K] unit_beta;
  vector[K] unit_kappa;
  real<lower=0> unit_sigma_y;
  real<lower=0> unit_sigma_pi;
  real<offset=kappa_0, multiplier=s_kappa> kappa_y;
}
transformed parameters {
  real sigma_y = s_y * unit_sigma_y;
  real sigma_pi = s_pi * unit_sigma_pi;
  vector[K] beta;
  vector[K] kappa_x;
  // deviations of the regressions' coefficients from the fit's, for log y and for log w + kappa_y log y
  vector[K] shift_y = R * unit_beta * s_y;
  vector[K] shift_pi = R * unit_kappa * s_pi;
  // measured from the sample law, whose intercepts are those of the population moved by the covariance
  shift_y[1] += -kappa_y * square(sigma_y);
  shift_pi[1] += -square(sigma_pi);
  beta = B0[ : , 1] + shift_y;
  kappa_x = -B0[ : , 2] - kappa_y * B0[ : , 1] + shift_pi;
}
model {
  matrix[2, 2] Q;
  {
    // sums of alpha (log y - x'beta)^2 and of alpha (log w + kappa_y log y + x'kappa_x)^2
    vector[K] slope_pi = slope[ : , 2] + kappa_y * slope[ : , 1];
    real square_y = residual[1, 1] + quad_form(gram, shift_y) - 2 * dot_product(shift_y, slope[ : , 1]);
    real square_pi = residual[2, 2] + 2 * kappa_y * residual[1, 2] + square(kappa_y) * residual[1, 1]
                     + quad_form(gram, shift_pi) + 2 * dot_product(shift_pi, slope_pi);
    real sum_log_pi = -sum(sum_z[ : , 2]);
    real sum_log_mean = dot_product(row, kappa_x + kappa_y * beta)
                        + 0.5 * n * (square(kappa_y * sigma_y) + square(sigma_pi));
    target += -n * (log(2 * pi()) + log(sigma_y) + log(sigma_pi)) - 0.5 * square_y / square(sigma_y)
              - 0.5 * square_pi / square(sigma_pi) + sum_log_pi - sum_log_mean;
  }
  {
    // the prior at the sample law, and the Jacobian
    real Sigma_yw = -kappa_y * square(sigma_y);
    real Sigma_ww = square(kappa_y * sigma_y) + square(sigma_pi);
    matrix[K, 2] D = append_col(beta, -kappa_x - kappa_y * beta) - prior_location;
    D[1, 1] += -Sigma_yw;
    D[1, 2] += -Sigma_ww;
    matrix[2, 2] V = prior_scale + quad_form(prior_precision, D);
    target += -prior_power * (log(sigma_y) + log(sigma_pi)) + 3 * log(sigma_y) + log(sigma_pi)
              - 0.5 * V[1, 1] / square(sigma_y)
              - 0.5 * (V[2, 2] + 2 * kappa_y * V[1, 2] + square(kappa_y) * V[1, 1]) / square(sigma_pi);
  }
  if (N > 0) {
    vector[N] f = log_lik_of(log_outcome, log_weight, (X * beta)[pattern], (X * kappa_x)[pattern],
                             sigma_y, kappa_y, sigma_pi);
    target += sum(fmin(fmax(alpha .* (f - reference), -clamp), clamp));
  }
}
generated quantities {
  vector[N] log_lik;
  if (N > 0) {
    log_lik = log_lik_of(log_outcome, log_weight, (X * beta)[pattern], (X * kappa_x)[pattern],
                         sigma_y, kappa_y, sigma_pi);
  }
}
