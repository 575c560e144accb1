// The papers' script for a censored likelihood ([G], Supplement 2): loops over records, both log likelihoods of every record in
// generated quantities.
functions {
  real betawt_lpdf(vector outcome, real beta1, real beta2, vector alpha, int n, real M) {
    real check_term = 0.0;
    for (i in 1 : n) {
      real update_term = alpha[i] * beta_lpdf(outcome[i] | beta1, beta2);
      check_term += fmax(fmin(update_term, M), -M);
    }
    return check_term;
  }
}
data {
  int<lower=1> n;
  vector<lower=0, upper=1>[n] y;
  vector<lower=0>[n] alpha;
  real<lower=0> M;
}
parameters {
  real<lower=0, upper=1> phi;
  real<lower=0.1> lambda;
}
model {
  phi ~ beta(1, 1);
  lambda ~ pareto(0.1, 1.5);
  target += betawt_lpdf(y | lambda * phi, lambda * (1 - phi), alpha, n, M);
}
generated quantities {
  vector[n] log_lik;
  vector[n] log_lik_noM;
  for (i in 1 : n) {
    log_lik_noM[i] = alpha[i] * beta_lpdf(y[i] | lambda * phi, lambda * (1 - phi));
    log_lik[i] = fmax(fmin(log_lik_noM[i], M), -M);
  }
}
