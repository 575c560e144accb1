// The papers' way: a loop over records in the model, the log likelihood of every record in generated quantities.
data {
  int<lower=1> n;
  vector<lower=0, upper=1>[n] y;
  vector<lower=0>[n] alpha;
}
parameters {
  real<lower=0, upper=1> phi;
  real<lower=0.1> lambda;
}
model {
  phi ~ beta(1, 1);
  lambda ~ pareto(0.1, 1.5);
  for (i in 1 : n) {
    target += alpha[i] * beta_lpdf(y[i] | lambda * phi, lambda * (1 - phi));
  }
}
generated quantities {
  vector[n] log_lik;
  for (i in 1 : n) {
    log_lik[i] = beta_lpdf(y[i] | lambda * phi, lambda * (1 - phi));
  }
}
