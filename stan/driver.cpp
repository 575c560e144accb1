// The command line of one compiled Stan program, in the dialect of CmdStan: what cmdstanpy asks of an `exe_file`.
//
//   PROGRAM info
//   PROGRAM [id=N] random seed=S [data file=F] [init=RADIUS|F] output file=C [sig_figs=D] method=sample ...
//
// A bare word opens a section; name=value belongs to the open section, else to the method, else to the top level.
// Methods: sample (NUTS with a unit, diagonal or dense metric; fixed_param), optimize (L-BFGS), generate_quantities and
// log_prob. Several chains run in one process on STAN_NUM_THREADS threads; draws depend on seed and chain id only.
// Fatal messages start with "Error" and the exit code is 1.

#include "guard.hpp"

#include <stan/callbacks/interrupt.hpp>
#include <stan/callbacks/stream_logger.hpp>
#include <stan/callbacks/writer.hpp>
#include <stan/io/empty_var_context.hpp>
#include <stan/io/json/json_data.hpp>
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

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// Defined by the program that stanc translated.
stan::model::model_base& new_model(stan::io::var_context& data, unsigned int seed, std::ostream* messages);

namespace {

using model_t = stan::model::model_base;
using context_t = std::shared_ptr<stan::io::var_context>;
using row_t = std::vector<double>;

[[noreturn]] void fail(const std::string& message) { throw std::runtime_error(message); }

// ---------------------------------------------------------------------------------------------------- arguments

struct argument {
  std::string section, name, value;
};

const std::vector<argument> defaults = {
    {"", "id", "1"},
    {"", "init", "2"},
    {"", "num_threads", "0"},
    {"random", "seed", ""},
    {"data", "file", ""},
    {"output", "file", "output.csv"},
    {"output", "diagnostic_file", ""},
    {"output", "profile_file", ""},
    {"output", "refresh", "100"},
    {"output", "sig_figs", "-1"},
    {"sample", "num_samples", "1000"},
    {"sample", "num_warmup", "1000"},
    {"sample", "save_warmup", "0"},
    {"sample", "thin", "1"},
    {"sample", "algorithm", "hmc"},
    {"sample", "engine", "nuts"},
    {"sample", "max_depth", "10"},
    {"sample", "metric", "diag_e"},
    {"sample", "metric_file", ""},
    {"sample", "stepsize", "1"},
    {"sample", "stepsize_jitter", "0"},
    {"sample", "num_chains", "1"},
    {"adapt", "engaged", "1"},
    {"adapt", "delta", "0.8"},
    {"adapt", "gamma", "0.05"},
    {"adapt", "kappa", "0.75"},
    {"adapt", "t0", "10"},
    {"adapt", "init_buffer", "75"},
    {"adapt", "term_buffer", "50"},
    {"adapt", "window", "25"},
    {"optimize", "algorithm", "lbfgs"},
    {"optimize", "jacobian", "0"},
    {"optimize", "iter", "2000"},
    {"optimize", "save_iterations", "0"},
    {"optimize", "init_alpha", "0.001"},
    {"optimize", "tol_obj", "1e-12"},
    {"optimize", "tol_rel_obj", "1e4"},
    {"optimize", "tol_grad", "1e-8"},
    {"optimize", "tol_rel_grad", "1e7"},
    {"optimize", "tol_param", "1e-8"},
    {"optimize", "history_size", "5"},
    {"generate_quantities", "fitted_params", ""},
    {"log_prob", "constrained_params", ""},
    {"log_prob", "unconstrained_params", ""},
    {"log_prob", "jacobian", "1"},
};
const std::vector<std::string> methods = {"sample", "optimize", "generate_quantities", "log_prob"};

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

class arguments {
 public:
  arguments(int count, char** words) {
    std::string open;
    for (int i = 1; i < count; ++i) {
      const std::string word = words[i];
      const auto equals = word.find('=');
      if (equals == std::string::npos)
        open = opened(word);
      else if (word.compare(0, equals, "method") == 0)
        open = opened(word.substr(equals + 1));
      else
        find(open, word.substr(0, equals)).value = word.substr(equals + 1);
    }
    if (method_.empty())
      fail("no method given; one of sample, optimize, generate_quantities, log_prob is expected");
    if (auto& seed = find("random", "seed").value; seed.empty())
      seed = std::to_string(std::random_device{}() % 100000);
  }

  const std::string& method() const { return method_; }

  const std::string& text(const std::string& section, const std::string& name) const {
    for (const auto& candidate : all_)
      if (candidate.section == section && candidate.name == name)
        return candidate.value;
    throw std::logic_error("no argument " + name);
  }

  template <typename T>
  T number(const std::string& section, const std::string& name, T lowest = std::numeric_limits<T>::lowest()) const {
    const auto& said = text(section, name);
    std::istringstream in(said);
    T value{};
    if (!(in >> value) || !in.eof() || value < lowest || (std::is_unsigned_v<T> && said.front() == '-'))
      fail(name + "=" + said + " is not a number that this argument takes");
    return value;
  }

  bool flag(const std::string& section, const std::string& name) const {
    const auto& said = text(section, name);
    if (!contains({"0", "1", "false", "true"}, said))
      fail(name + "=" + said + ", 0 or 1 is expected");
    return said == "1" || said == "true";
  }

  // One of a few words; anything else is refused, with what is allowed.
  const std::string& choice(const std::string& section, const std::string& name,
                            const std::vector<std::string>& allowed) const {
    const auto& said = text(section, name);
    if (!contains(allowed, said)) {
      std::string listed;
      for (const auto& word : allowed)
        listed += (listed.empty() ? "" : ", ") + word;
      fail(name + "=" + said + " is not available here; allowed: " + listed);
    }
    return said;
  }

  // The head of every output file: comment lines `name = value`.
  void write(stan::callbacks::writer& out) const {
    out("method = " + method_);
    for (const auto& [section, name, value] : all_)
      if (!contains(methods, section) || section == method_)
        if (section != "adapt" || method_ == "sample")
          out(std::string(section.empty() ? "" : "  ") + name + " = " + value);
  }

 private:
  std::string opened(const std::string& word) {
    if (contains(methods, word))
      method_ = word;
    else if (std::none_of(all_.begin(), all_.end(), [&](const auto& known) { return known.section == word; }))
      fail(word + " is neither a method that this program has nor a section of its arguments");
    return word;
  }

  argument& find(const std::string& open, const std::string& name) {
    for (const auto& section : {open, method_, std::string()})
      for (auto& candidate : all_)
        if (candidate.section == section && candidate.name == name)
          return candidate;
    fail("unknown argument " + name);
  }

  std::string method_;
  std::vector<argument> all_ = defaults;
};

// -------------------------------------------------------------------------------------------------------- files

// C.csv for one chain; C_<id>.csv where several chains write side by side.
std::string numbered(const std::string& path, const std::string& tag) {
  const auto dot = path.rfind('.');
  const auto slash = path.rfind('/');
  const bool suffixed = dot != std::string::npos && (slash == std::string::npos || dot > slash);
  return suffixed ? path.substr(0, dot) + "_" + tag + path.substr(dot) : path + "_" + tag;
}

// Comments, names and rows of numbers; without a path it swallows what it is told.
class csv_writer final : public stan::callbacks::writer {
 public:
  csv_writer() = default;
  csv_writer(const std::string& path, int significant) : path_(path), significant_(significant < 0 ? 6 : significant) {
    out_.open(path, std::ios::trunc);
    check();
  }

  using stan::callbacks::writer::operator();
  void operator()() override { line("#"); }
  void operator()(const std::string& comment) override { line("# " + comment); }
  void operator()(const std::vector<std::string>& names) override {
    std::string joined;
    for (const auto& name : names)
      joined += (joined.empty() ? "" : ",") + name;
    line(joined);
  }
  void operator()(const row_t& values) override {
    if (!out_.is_open() || values.empty())
      return;
    row_.resize(values.size() * 32);
    char* end = row_.data();
    for (const double value : values) {
      end = std::to_chars(end, end + 31, value, std::chars_format::general, significant_).ptr;
      *end++ = ',';
    }
    end[-1] = '\n';
    out_.write(row_.data(), end - row_.data());
  }

  void close() {
    if (!out_.is_open())
      return;
    out_.close();
    check();
  }

 private:
  void line(const std::string& text) {
    if (out_.is_open())
      out_ << text << '\n';
  }
  void check() const {
    if (!out_)
      fail("cannot write " + path_);
  }

  std::string path_;
  int significant_ = 6;
  std::ofstream out_;
  std::string row_;
};

context_t json(const std::string& path) {
  std::ifstream in(path);
  if (!in)
    fail("cannot read " + path);
  return std::make_shared<stan::json::json_data>(in);
}

// One context a chain: X_<id>.json where it exists, else X.json.
std::vector<context_t> json_by_chain(const std::string& path, unsigned int first, std::size_t chains) {
  std::vector<context_t> contexts;
  for (std::size_t i = 0; i < chains; ++i) {
    const auto own = numbered(path, std::to_string(first + i));
    contexts.push_back(json(std::ifstream(own) ? own : path));
  }
  return contexts;
}

// The columns called `names` of a Stan CSV file, shape (draw, name).
Eigen::MatrixXd read_draws(const std::string& path, const std::vector<std::string>& names) {
  std::ifstream in(path);
  if (!in)
    fail("cannot read " + path);
  std::map<std::string, std::size_t> position;
  std::vector<row_t> rows;
  for (std::string line, cell; std::getline(in, line);) {
    if (line.empty() || line[0] == '#')
      continue;
    std::istringstream cells(line);
    if (position.empty()) {
      while (std::getline(cells, cell, ','))
        position.emplace(cell, position.size());
      continue;
    }
    auto& row = rows.emplace_back();
    while (std::getline(cells, cell, ','))
      row.push_back(std::strtod(cell.c_str(), nullptr));
    if (row.size() != position.size())
      fail(path + ": a row is not as long as its header");
  }
  Eigen::MatrixXd draws(rows.size(), names.size());
  for (std::size_t j = 0; j < names.size(); ++j) {
    const auto column = position.find(names[j]);
    if (column == position.end())
      fail(path + " has no column " + names[j] + ", a parameter of this program");
    for (std::size_t i = 0; i < rows.size(); ++i)
      draws(i, j) = rows[i][column->second];
  }
  return draws;
}

std::vector<std::string> parameter_names(const model_t& model) {
  std::vector<std::string> names;
  model.constrained_param_names(names, false, false);
  return names;
}

// ------------------------------------------------------------------------------------------------------ methods

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

struct run {
  const arguments& given;
  model_t& model;
  unsigned int id, seed;
  int refresh;
  std::size_t chains;
  std::vector<csv_writer>&output, &diagnostics;
  stan::callbacks::interrupt interrupt{};
  stan::callbacks::stream_logger logger{std::cout, std::cout, std::cout, std::cerr, std::cerr};
};

int sample(run& r) {
  namespace services = stan::services::sample;
  const auto whole = [&](const char* name, int lowest) { return r.given.number<int>("sample", name, lowest); };
  const auto real = [&](const char* section, const char* name) { return r.given.number<double>(section, name, 0); };
  const auto buffer = [&](const char* name) { return r.given.number<unsigned int>("adapt", name); };

  const int warmup = whole("num_warmup", 0), draws = whole("num_samples", 0), thin = whole("thin", 1);
  const bool save_warmup = r.given.flag("sample", "save_warmup");
  const start from(r.given, r.id, r.chains);
  std::vector<stan::callbacks::writer> unused(r.chains);

  bool fixed = r.given.choice("sample", "algorithm", {"hmc", "fixed_param"}) == "fixed_param";
  if (!fixed && r.model.num_params_r() == 0) {
    r.logger.info("Model contains no parameters, running fixed_param sampler, no updates to Markov chain.");
    fixed = true;
  }
  if (fixed)
    return services::fixed_param(r.model, r.chains, from.contexts, r.seed, r.id, from.radius, draws, thin, r.refresh,
                                 r.interrupt, r.logger, unused, r.output, r.diagnostics);

  r.given.choice("sample", "engine", {"nuts"});
  const auto& metric = r.given.choice("sample", "metric", {"diag_e", "dense_e", "unit_e"});
  const bool adapt = r.given.flag("adapt", "engaged");
  if (adapt && warmup == 0)
    fail("adaptation needs num_warmup > 0; without it, say adapt engaged=0");
  const int depth = whole("max_depth", 1);
  const double stepsize = real("sample", "stepsize"), jitter = real("sample", "stepsize_jitter");
  const double delta = real("adapt", "delta"), gamma = real("adapt", "gamma");
  const double kappa = real("adapt", "kappa"), t0 = real("adapt", "t0");
  const unsigned int init_buffer = buffer("init_buffer"), term_buffer = buffer("term_buffer");
  const unsigned int window = buffer("window");

  if (metric == "unit_e") {
    if (adapt)
      return services::hmc_nuts_unit_e_adapt(r.model, r.chains, from.contexts, r.seed, r.id, from.radius, warmup, draws,
                                             thin, save_warmup, r.refresh, stepsize, jitter, depth, delta, gamma, kappa,
                                             t0, r.interrupt, r.logger, unused, r.output, r.diagnostics);
    return services::hmc_nuts_unit_e(r.model, r.chains, from.contexts, r.seed, r.id, from.radius, warmup, draws, thin,
                                     save_warmup, r.refresh, stepsize, jitter, depth, r.interrupt, r.logger, unused,
                                     r.output, r.diagnostics);
  }

  const bool dense = metric == "dense_e";
  const auto identity = [&]() -> context_t {
    using stan::io::array_var_context;
    namespace util = stan::services::util;
    const auto size = r.model.num_params_r();
    return std::make_shared<array_var_context>(dense ? util::create_unit_e_dense_inv_metric(size)
                                                     : util::create_unit_e_diag_inv_metric(size));
  };
  const auto& metric_file = r.given.text("sample", "metric_file");
  const auto metrics = metric_file.empty() ? std::vector<context_t>(r.chains, identity())
                                           : json_by_chain(metric_file, r.id, r.chains);

  // The services of the diagonal and the dense metric take the same arguments.
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

// --------------------------------------------------------------------------------------------------------- main

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

int main(int count, char** words) {
  std::ios::sync_with_stdio(true);  // chains log from several threads
  try {
    if (count == 2 && std::string(words[1]) == "info") {
      for (const auto& [name, value] : version)
        std::cout << name << " = " << value << '\n';
      std::cout << "STAN_THREADS = true\n";
      return 0;
    }
    execute(arguments(count, words));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "Error: " << error.what() << std::endl;
    return 1;
  }
}
