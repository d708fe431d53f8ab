#include "tests/kernel/fakecuda/kernel_table.hpp"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace fakecuda {
namespace {

const char kEveryName[] = "*";

void set_name(KernelSpec& spec, const std::string& name) {
    spec.name = name;
    // The log of the virtual GPU has no room for more.
    name.copy(spec.work.name.data(), spec.work.name.size() - 1);
}

}  // namespace

KernelTable KernelTable::from_environment() {
    KernelTable table;
    if (const char* path = std::getenv("FAKECUDA_KERNELS")) {
        table.read(path);
    } else {
        KernelSpec any{kEveryName, 32, 0, {}};
        any.work.duration_ns = 10'000;
        any.work.compute_permille = any.work.bandwidth_permille = 500;
        table.rows_[kEveryName] = any;
    }
    return table;
}

void KernelTable::read(const std::string& path) {
    std::ifstream file(path);
    if (!file) throw std::runtime_error("FAKECUDA_KERNELS: cannot read " + path);
    std::string text;
    for (int number = 1; std::getline(file, text); ++number) {
        std::istringstream line(text.substr(0, text.find('#')));
        std::string name;
        if (!(line >> name)) continue;
        KernelSpec spec{};
        set_name(spec, name);
        line >> spec.registers >> spec.static_shared_bytes >> spec.work.duration_ns >>
            spec.work.compute_permille >> spec.work.bandwidth_permille;
        std::string rest;
        if (!line || line >> rest) {
            throw std::runtime_error(path + ":" + std::to_string(number) +
                                     ": expected a name and five numbers");
        }
        rows_[name] = spec;
    }
}

const KernelSpec* KernelTable::find(const std::string& name) {
    if (const auto row = rows_.find(name); row != rows_.end()) return &row->second;
    const auto star = rows_.find(kEveryName);
    if (star == rows_.end()) return nullptr;
    const auto [made, is_new] = from_star_.try_emplace(name, star->second);
    if (is_new) set_name(made->second, name);
    return &made->second;
}

std::vector<const KernelSpec*> KernelTable::listed() const {
    std::vector<const KernelSpec*> all;
    for (const auto& [name, spec] : rows_) {
        if (name != kEveryName) all.push_back(&spec);
    }
    return all;
}

}  // namespace fakecuda
