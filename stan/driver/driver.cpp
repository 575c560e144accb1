// The command line of one compiled Stan program, in the dialect of CmdStan: what cmdstanpy asks of an `exe_file`.
//
//   PROGRAM info
//   PROGRAM [id=N] random seed=S [data file=F] [init=RADIUS|F] output file=C [sig_figs=D] method=sample ...
//
// Methods: sample (NUTS with a unit, diagonal or dense metric; fixed_param), optimize (L-BFGS), generate_quantities and
// log_prob. Several chains run in one process on STAN_NUM_THREADS threads; draws depend on seed and chain id only. Fatal
// messages start with "Error" and the exit code is 1.

#include "arguments.hpp"
#include "files.hpp"
#include "guard.hpp"

#include <stan/callbacks/interrupt.hpp>
#include <stan/callbacks/stream_logger.hpp>
#include <stan/callbacks/writer.hpp>
#include <stan/io/empty_var_context.hpp>
#include <stan/math/prim/core/init_threadpool_tbb.hpp>
#include <stan/model/log_prob_grad.hpp>
#include <stan/model/model_base.hpp>
#include <stan/services/optimize/lbfgs.hpp>
#include <stan/services/sample/fixed_param.hpp>
#include <stan/services/sample/hmc_nuts_dense_e.hpp>
#include <stan/services/sample/hmc_nuts_dense_e_adapt.hpp>
#include <stan/services/sample/hmc_nuts_diag_e.hpp>
#include <stan/services/sample/hmc_nuts_diag_e_adapt.hpp>
#include <stan/services/sample/hmc_nuts_unit_e.hpp>
#include <stan/services/sample/hmc_nuts_unit_e_adapt.hpp>
#include <stan/services/sample/standalone_gqs.hpp>
#include <stan/version.hpp>

#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// Defined by the program that stanc translated.
stan::model::model_base& new_model(stan::io::var_context& data, unsigned int seed, std::ostream* messages);

namespace dpdist {
namespace {

using model_t = stan::model::model_base;

std::vector<std::string> parameter_names(const model_t& model) {
  std::vector<std::string> names;
  model.constrained_param_names(names, false, false);
  return names;
}

// Where chains start: a radius around 0 on the unconstrained scale, or files.
struct start {
  double radius = 2;
  std::vector<context_t> contexts;

  start(const arguments& given, unsigned int id, std::size_t chains) {
    const auto& said = given.text("", "init");
    char* end = nullptr;
    const double number = std::strtod(said.c_str(), &end);
    if (!said.empty() && *end == '\0') {
      radius = number;
      contexts.assign(chains, std::make_shared<stan::io::empty_var_context>());
    } else {
      contexts = json_by_chain(said, id, chains);
    }
  }
};

// One run of the program: what every method needs.
struct run {
  const arguments& given;
  model_t& model;
  unsigned int id, seed;
  int refresh;
  std::size_t chains;
  std::vector<csv_writer>& output;
  std::vector<csv_writer>& diagnostics;
  stan::callbacks::interrupt interrupt{};
  stan::callbacks::stream_logger logger{std::cout, std::cout, std::cout, std::cerr, std::cerr};
};

int fixed_param(run& r, const start& from, int draws, int thin) {
  std::vector<stan::callbacks::writer> unused(r.chains);
  return stan::services::sample::fixed_param(r.model, r.chains, from.contexts, r.seed, r.id, from.radius, draws, thin,
                                             r.refresh, r.interrupt, r.logger, unused, r.output, r.diagnostics);
}

// The inverse metric where each chain starts: of a file, or the identity.
std::vector<context_t> inverse_metrics(const run& r, bool dense) {
  namespace util = stan::services::util;
  const auto& file = r.given.text("sample", "metric_file");
  if (!file.empty())
    return json_by_chain(file, r.id, r.chains);
  const auto size = r.model.num_params_r();
  const auto identity = dense ? util::create_unit_e_dense_inv_metric(size) : util::create_unit_e_diag_inv_metric(size);
  return std::vector<context_t>(r.chains, std::make_shared<stan::io::array_var_context>(identity));
}

int sample(run& r) {
  namespace services = stan::services::sample;
  const auto whole = [&](const char* name, int lowest) { return r.given.number<int>("sample", name, lowest); };
  const auto real = [&](const char* section, const char* name) { return r.given.number<double>(section, name, 0); };
  const auto buffer = [&](const char* name) { return r.given.number<unsigned int>("adapt", name); };

  const start from(r.given, r.id, r.chains);
  const int draws = whole("num_samples", 0), thin = whole("thin", 1);
  if (r.given.choice("sample", "algorithm", {"hmc", "fixed_param"}) == "fixed_param")
    return fixed_param(r, from, draws, thin);
  if (r.model.num_params_r() == 0) {
    r.logger.info("Model contains no parameters, running fixed_param sampler, no updates to Markov chain.");
    return fixed_param(r, from, draws, thin);
  }

  r.given.choice("sample", "engine", {"nuts"});
  const auto& metric = r.given.choice("sample", "metric", {"diag_e", "dense_e", "unit_e"});
  const bool adapt = r.given.flag("adapt", "engaged"), save_warmup = r.given.flag("sample", "save_warmup");
  const int warmup = whole("num_warmup", 0), depth = whole("max_depth", 1);
  const double stepsize = real("sample", "stepsize"), jitter = real("sample", "stepsize_jitter");
  const double delta = real("adapt", "delta"), gamma = real("adapt", "gamma");
  const double kappa = real("adapt", "kappa"), t0 = real("adapt", "t0");
  const unsigned int init_buffer = buffer("init_buffer"), term_buffer = buffer("term_buffer");
  const unsigned int window = buffer("window");
  if (adapt && warmup == 0)
    fail("adaptation needs num_warmup > 0; without it, say adapt engaged=0");
  std::vector<stan::callbacks::writer> unused(r.chains);

  if (metric == "unit_e" && adapt)
    return services::hmc_nuts_unit_e_adapt(r.model, r.chains, from.contexts, r.seed, r.id, from.radius, warmup, draws,
                                           thin, save_warmup, r.refresh, stepsize, jitter, depth, delta, gamma, kappa,
                                           t0, r.interrupt, r.logger, unused, r.output, r.diagnostics);
  if (metric == "unit_e")
    return services::hmc_nuts_unit_e(r.model, r.chains, from.contexts, r.seed, r.id, from.radius, warmup, draws, thin,
                                     save_warmup, r.refresh, stepsize, jitter, depth, r.interrupt, r.logger, unused,
                                     r.output, r.diagnostics);

  // The services of the diagonal and of the dense metric take the same arguments.
  const bool dense = metric == "dense_e";
  const auto metrics = inverse_metrics(r, dense);
  const auto adapted = [&](auto service) {
    return service(r.model, r.chains, from.contexts, metrics, r.seed, r.id, from.radius, warmup, draws, thin,
                   save_warmup, r.refresh, stepsize, jitter, depth, delta, gamma, kappa, t0, init_buffer, term_buffer,
                   window, r.interrupt, r.logger, unused, r.output, r.diagnostics);
  };
  const auto plain = [&](auto service) {
    return service(r.model, r.chains, from.contexts, metrics, r.seed, r.id, from.radius, warmup, draws, thin,
                   save_warmup, r.refresh, stepsize, jitter, depth, r.interrupt, r.logger, unused, r.output,
                   r.diagnostics);
  };
  if (adapt)
    return dense ? adapted([](auto&... a) { return services::hmc_nuts_dense_e_adapt(a...); })
                 : adapted([](auto&... a) { return services::hmc_nuts_diag_e_adapt(a...); });
  return dense ? plain([](auto&... a) { return services::hmc_nuts_dense_e(a...); })
               : plain([](auto&... a) { return services::hmc_nuts_diag_e(a...); });
}

int optimize(run& r) {
  const auto whole = [&](const char* name) { return r.given.number<int>("optimize", name, 1); };
  const auto real = [&](const char* name) { return r.given.number<double>("optimize", name, 0); };
  r.given.choice("optimize", "algorithm", {"lbfgs"});
  const start from(r.given, r.id, 1);
  const bool save_iterations = r.given.flag("optimize", "save_iterations");
  stan::callbacks::writer unused;
  const auto lbfgs = [&](auto jacobian) {
    return stan::services::optimize::lbfgs<model_t, decltype(jacobian)::value>(
        r.model, *from.contexts[0], r.seed, r.id, from.radius, whole("history_size"), real("init_alpha"),
        real("tol_obj"), real("tol_rel_obj"), real("tol_grad"), real("tol_rel_grad"), real("tol_param"), whole("iter"),
        save_iterations, r.refresh, r.interrupt, r.logger, unused, r.output[0]);
  };
  return r.given.flag("optimize", "jacobian") ? lbfgs(std::true_type{}) : lbfgs(std::false_type{});
}

int generate_quantities(run& r) {
  const auto fitted = read_draws(r.given.text("generate_quantities", "fitted_params"), parameter_names(r.model));
  return stan::services::standalone_generate(r.model, fitted, r.seed, r.interrupt, r.logger, r.output[0]);
}

// The unconstrained parameters at which log_prob is asked for, one vector a row of the file.
std::vector<row_t> points(const run& r) {
  const auto& constrained = r.given.text("log_prob", "constrained_params");
  const auto& unconstrained = r.given.text("log_prob", "unconstrained_params");
  if (constrained.empty() == unconstrained.empty())
    fail("log_prob takes either constrained_params or unconstrained_params");
  std::vector<row_t> found;
  std::vector<int> no_integers;
  if (!unconstrained.empty()) {
    const auto values = json(unconstrained)->vals_r("params_r");
    const std::size_t size = r.model.num_params_r();
    if (size == 0 || values.empty() || values.size() % size != 0)
      fail("params_r in " + unconstrained + " does not fill vectors of " + std::to_string(size) + " parameters");
    const std::size_t count = values.size() / size;  // a matrix (point, parameter) arrives column by column
    for (std::size_t i = 0; i < count; ++i) {
      auto& point = found.emplace_back();
      for (std::size_t j = 0; j < size; ++j)
        point.push_back(values[j * count + i]);
    }
  } else if (constrained.size() > 4 && constrained.compare(constrained.size() - 4, 4, ".csv") == 0) {
    const auto draws = read_draws(constrained, parameter_names(r.model));
    for (Eigen::Index i = 0; i < draws.rows(); ++i) {
      const Eigen::VectorXd row = draws.row(i);
      r.model.unconstrain_array(row_t(row.data(), row.data() + row.size()), found.emplace_back(), &std::cout);
    }
  } else {
    r.model.transform_inits(*json(constrained), no_integers, found.emplace_back(), &std::cout);
  }
  return found;
}

// The log density with its gradient; constants are dropped from `~` statements and kept in `target +=`, as in sampling.
int log_prob(run& r) {
  const bool jacobian = r.given.flag("log_prob", "jacobian");
  std::vector<std::string> names, header = {"lp__"};
  r.model.unconstrained_param_names(names, false, false);
  for (const auto& name : names)
    header.push_back("g_" + name);
  r.output[0](header);
  std::vector<int> no_integers;
  for (auto& point : points(r)) {
    row_t gradient;
    const double density
        = jacobian ? stan::model::log_prob_grad<true, true>(r.model, point, no_integers, gradient, &std::cout)
                   : stan::model::log_prob_grad<true, false>(r.model, point, no_integers, gradient, &std::cout);
    gradient.insert(gradient.begin(), density);
    r.output[0](gradient);
  }
  return 0;
}

const std::vector<std::pair<std::string, std::string>> version = {
    {"stan_version_major", stan::MAJOR_VERSION},
    {"stan_version_minor", stan::MINOR_VERSION},
    {"stan_version_patch", stan::PATCH_VERSION},
};

std::vector<csv_writer> open_all(const arguments& given, const char* name, unsigned int id, std::size_t chains) {
  const auto& path = given.text("output", name);
  const int significant = given.number<int>("output", "sig_figs", -1);
  if (significant > 18)
    fail("sig_figs is at most 18");
  std::vector<csv_writer> writers(path.empty() ? chains : 0);
  for (std::size_t i = 0; i < chains && !path.empty(); ++i)
    writers.emplace_back(chains == 1 ? path : numbered(path, std::to_string(id + i)), significant);
  return writers;
}

void execute(const arguments& given) {
  const auto& method = given.method();
  const auto id = given.number<unsigned int>("", "id"), seed = given.number<unsigned int>("random", "seed");
  const std::size_t chains = method == "sample" ? given.number<int>("sample", "num_chains", 1) : 1;
  stan::math::init_threadpool_tbb(given.number<int>("", "num_threads", -1));

  const auto& file = given.text("data", "file");
  const context_t data = file.empty() ? std::make_shared<stan::io::empty_var_context>() : json(file);
  model_t& model = new_model(*data, seed, &std::cout);

  auto output = open_all(given, "file", id, chains), diagnostics = open_all(given, "diagnostic_file", id, chains);
  for (auto* writers : {&output, &diagnostics})
    for (auto& writer : *writers) {
      for (const auto& [name, value] : version)
        writer(name + " = " + value);
      writer("model = " + model.model_name());
      for (const auto& line : model.model_compile_info())
        writer(line);
      given.write(writer);
    }

  run r{given, model, id, seed, given.number<int>("output", "refresh", 0), chains, output, diagnostics};
  const int code = method == "sample"                ? sample(r)
                   : method == "optimize"            ? optimize(r)
                   : method == "generate_quantities" ? generate_quantities(r)
                                                     : log_prob(r);
  for (auto* writers : {&output, &diagnostics})
    for (auto& writer : *writers)
      writer.close();
  if (code != 0)
    fail(method + " did not finish (code " + std::to_string(code) + "); the reason is above");
}

}  // namespace
}  // namespace dpdist

int main(int count, char** words) {
  try {
    if (count == 2 && std::string(words[1]) == "info") {
      for (const auto& [name, value] : dpdist::version)
        std::cout << name << " = " << value << '\n';
      std::cout << "STAN_THREADS = true\n";
      return 0;
    }
    dpdist::execute(dpdist::arguments(count, words));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "Error: " << error.what() << std::endl;
    return 1;
  }
}
