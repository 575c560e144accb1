// FBS: z = (log outcome, log weight), z | x ~ N2(B'x, Sigma) in the sample ([T]; METHODS 5).
//
// Prior density of (B, Sigma), with respect to the entries of B and the three different entries of Sigma:
//   |Sigma|^(-prior_power/2) exp(-tr(Sigma^-1 (prior_scale + (B - M)' prior_precision (B - M))) / 2),  M = prior_location.
// Improper |Sigma|^(-3/2): prior_power = 3, the others 0. Conjugate: Sigma ~ IW(n0, prior_scale), B | Sigma ~
// MN(M, prior_precision^-1, Sigma), prior_power = n0 + 3 + K.
//
// B and Sigma are affine images of the parameters, measured from the weighted least squares fit: constant Jacobian.
functions {
  vector log_lik_of(matrix z, matrix mu, matrix Sigma) {
    matrix[2, 2] L = cholesky_decompose(Sigma);
    return -log(2 * pi()) - sum(log(diagonal(L))) - 0.5 * columns_dot_self(mdivide_left_tri_low(L, (z - mu)'))';
  }
}
data {
  int<lower=1> P; // patterns of predictors
  int<lower=1> K; // coefficients of a component
  matrix[P, K] X;
  vector<lower=0>[P] total; // sums of alpha
  matrix[P, 2] sum_z; // sums of alpha z
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
  matrix[K, K] gram = X' * diag_pre_multiply(total, X) + prior_precision;
  matrix[K, 2] cross = X' * sum_z + prior_precision * prior_location;
  matrix[2, 2] square = sum_zz + prior_scale + quad_form(prior_precision, prior_location);
  matrix[N, 2] z = append_col(log_outcome, log_weight);
  matrix[K, 2] B0; // the fit to statistics and records together
  matrix[K, K] R; // root of its (X'AX)^-1
  matrix[2, 2] C; // root of its covariance
  matrix[K, 2] slope; // half the gradient of the residual square at B0: 0 without records
  matrix[2, 2] residual; // residual square at B0
  {
    matrix[N, K] x = X[pattern];
    matrix[K, K] all_gram = gram + x' * diag_pre_multiply(alpha, x);
    matrix[K, 2] all_cross = cross + x' * diag_pre_multiply(alpha, z);
    matrix[2, 2] all_square = square + z' * diag_pre_multiply(alpha, z);
    R = inverse(cholesky_decompose(all_gram))';
    B0 = R * R' * all_cross;
    matrix[2, 2] S = all_square - B0' * all_cross;
    C = cholesky_decompose((S + S') / (2 * (sum(total) + sum(alpha) + prior_power)));
  }
  slope = cross - gram * B0;
  residual = square - B0' * cross - slope' * B0;
  real power = sum(total) + prior_power;
  real peak = -sum(total) * log(2 * pi()) - power * sum(log(diagonal(C)));
  matrix[2, 2] whitened = mdivide_left_tri_low(C, mdivide_left_tri_low(C, residual)');
}
parameters {
  matrix[K, 2] unit_coefficients;
  cov_matrix[2] unit_covariance;
}
model {
  if (N == 0) {
    // |Sigma| = |U| |C|^2 and tr(Sigma^-1 Q) = tr(U^-1 (whitened + u'u)), for U and u the unit parameters and R' gram R = 1
    real determinant = unit_covariance[1, 1] * unit_covariance[2, 2] - square(unit_covariance[1, 2]);
    real square_y = whitened[1, 1] + dot_self(unit_coefficients[ : , 1]);
    real square_w = whitened[2, 2] + dot_self(unit_coefficients[ : , 2]);
    real product = whitened[1, 2] + dot_product(unit_coefficients[ : , 1], unit_coefficients[ : , 2]);
    target += peak - 0.5 * power * log(determinant)
              - 0.5 / determinant
                * (unit_covariance[2, 2] * square_y - 2 * unit_covariance[1, 2] * product + unit_covariance[1, 1] * square_w);
  } else {
    matrix[K, 2] shift = R * unit_coefficients * C';
    matrix[2, 2] covariance_N = quad_form_sym(unit_covariance, C');
    matrix[2, 2] Q = residual + quad_form(gram, shift) - shift' * slope - slope' * shift;
    vector[N] f = log_lik_of(z, (X * (B0 + shift))[pattern], covariance_N);
    target += -sum(total) * log(2 * pi()) - 0.5 * power * log_determinant_spd(covariance_N)
              - 0.5 * trace(mdivide_left_spd(covariance_N, Q));
    target += sum(fmin(fmax(alpha .* (f - reference), -clamp), clamp));
  }
}
generated quantities {
  matrix[K, 2] coefficients = B0 + R * unit_coefficients * C';
  matrix[2, 2] covariance = quad_form_sym(unit_covariance, C');
  vector[N] log_lik;
  if (N > 0) {
    log_lik = log_lik_of(z, (X * coefficients)[pattern], covariance);
  }
}
