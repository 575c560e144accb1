// The command line of a program, in the dialect of CmdStan.
#pragma once

#include <stan/callbacks/writer.hpp>

#include <algorithm>
#include <limits>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace dpdist {

[[noreturn]] inline void fail(const std::string& message) { throw std::runtime_error(message); }

struct argument {
  std::string section, name, value;
};

// What may be said, and what holds where it is not: CmdStan's own names and defaults.

inline const std::vector<argument> defaults = {
    {"", "id", "1"},
    {"", "init", "2"},
    {"", "num_threads", "0"},
    {"random", "seed", ""},
    {"data", "file", ""},
    {"output", "file", "output.csv"},
    {"output", "diagnostic_file", ""},
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
inline const std::vector<std::string> methods = {"sample", "optimize", "generate_quantities", "log_prob"};

inline bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// A bare word opens a section; name=value belongs to the open section, else to the method, else to the top level. A value
// is checked as it is taken.
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

}  // namespace dpdist
