// Log outcome and log weight are normal given field and sex; the fields' means come from one normal law, so that a small
// field borrows from the others. A program of a user's: `dpdist/models/user.py` says what it is handed and must declare.
functions {
  matrix mean_of(array[] int field, array[] int sex, matrix field_mean, matrix sex_effect) {
    return field_mean[field] + append_row(rep_row_vector(0, 2), sex_effect)[sex];
  }
  // Log density of N weighted records about their means, with the sum of weights and the weighted sum of squares.
  real log_density(real total, matrix square, vector sigma, real rho) {
    real s = 1 - rho ^ 2;
    return -total * (log(2 * pi()) + sum(log(sigma)) + 0.5 * log(s))
           - 0.5 / s * (square[1, 1] / sigma[1] ^ 2 - 2 * rho * square[1, 2] / prod(sigma) + square[2, 2] / sigma[2] ^ 2);
  }
}
data {
  int<lower=0> N;
  vector<lower=0>[N] y;
  vector<lower=0>[N] w;
  vector<lower=0>[N] alpha;
  int<lower=1> field_levels;
  array[N] int<lower=1, upper=field_levels> field;
  int<lower=1> sex_levels;
  array[N] int<lower=1, upper=sex_levels> sex;
  vector[2] typical; // public guesses of log outcome and log weight
  int<lower=0, upper=1> generate; // 0 while sampling
}
transformed data {
  matrix[N, 2] z = append_col(log(y), log(w));
  int G = generate ? N : 0;
  int cells = field_levels * sex_levels;
  array[cells] int cell_field;
  array[cells] int cell_sex;
  vector[cells] total = rep_vector(0, cells); // weighted sums of 1, z and zz' by cell: all that the likelihood needs
  matrix[cells, 2] sums = rep_matrix(0, cells, 2);
  matrix[2, 2] squares = z' * diag_pre_multiply(alpha, z);
  for (f in 1 : field_levels) {
    for (s in 1 : sex_levels) {
      cell_field[(f - 1) * sex_levels + s] = f;
      cell_sex[(f - 1) * sex_levels + s] = s;
    }
  }
  for (n in 1 : N) {
    int c = (field[n] - 1) * sex_levels + sex[n];
    total[c] += alpha[n];
    sums[c] += alpha[n] * z[n];
  }
}
parameters {
  vector[2] mu;
  vector<lower=0>[2] tau;
  matrix[field_levels, 2] field_mean;
  matrix[sex_levels - 1, 2] sex_effect; // of every sex but the first
  vector<lower=0>[2] sigma;
  real<lower=-1, upper=1> rho;
}
model {
  matrix[cells, 2] m = mean_of(cell_field, cell_sex, field_mean, sex_effect);
  matrix[2, 2] cross = m' * sums;
  target += normal_lpdf(mu | typical, 1);
  target += lognormal_lpdf(tau | -1.5, 0.7);
  target += normal_lpdf(to_vector(field_mean) | to_vector(rep_matrix(mu', field_levels)), to_vector(rep_matrix(tau', field_levels)));
  target += normal_lpdf(to_vector(sex_effect) | 0, 0.3);
  target += lognormal_lpdf(sigma | -1, 0.7);
  target += log_density(sum(total), squares - cross - cross' + m' * diag_pre_multiply(total, m), sigma, rho);
}
generated quantities {
  vector[G] log_lik;
  vector[G] y_rep;
  vector[G] w_rep;
  if (generate) {
    matrix[N, 2] m = mean_of(field, sex, field_mean, sex_effect);
    for (n in 1 : N) {
      real u = std_normal_rng();
      real v = rho * u + sqrt(1 - rho ^ 2) * std_normal_rng();
      log_lik[n] = log_density(1, crossprod(z[n : n] - m[n : n]), sigma, rho);
      y_rep[n] = exp(m[n, 1] + sigma[1] * u);
      w_rep[n] = exp(m[n, 2] + sigma[2] * v);
    }
  }
}
