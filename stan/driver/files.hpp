// What a program reads and writes: JSON in, Stan CSV in and out.
#pragma once

#include "arguments.hpp"

#include <stan/callbacks/writer.hpp>
#include <stan/io/json/json_data.hpp>
#include <stan/io/var_context.hpp>
#include <stan/math/prim/fun/Eigen.hpp>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace dpdist {

using context_t = std::shared_ptr<stan::io::var_context>;
using row_t = std::vector<double>;

// X_<tag>.csv for X.csv: what chains that run side by side write, or read as their own.
inline std::string numbered(const std::string& path, const std::string& tag) {
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

inline context_t json(const std::string& path) {
  std::ifstream in(path);
  if (!in)
    fail("cannot read " + path);
  return std::make_shared<stan::json::json_data>(in);
}

// One context a chain: X_<id>.json where it exists, else X.json.
inline std::vector<context_t> json_by_chain(const std::string& path, unsigned int first, std::size_t chains) {
  std::vector<context_t> contexts;
  for (std::size_t i = 0; i < chains; ++i) {
    const auto own = numbered(path, std::to_string(first + i));
    contexts.push_back(json(std::ifstream(own) ? own : path));
  }
  return contexts;
}

// The columns called `names` of a Stan CSV file, shape (draw, name).
inline Eigen::MatrixXd read_draws(const std::string& path, const std::vector<std::string>& names) {
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

}  // namespace dpdist
