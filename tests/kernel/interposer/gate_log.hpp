// Reads what recording_gate.cpp wrote.
#pragma once

#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/kernel/interposer/session.hpp"

namespace explsched::test {

// All lines since the last call, joined by "|". The file is emptied.
inline std::string told_to_gate() {
    const std::string path = std::getenv("GATE_LOG");
    std::ifstream file(path);
    std::string all;
    for (std::string line; std::getline(file, line);) all += (all.empty() ? "" : "|") + line;
    std::ofstream(path, std::ios::trunc);
    return all;
}

// Launches and waits until the gate has been told this, such as that the GPU writes to its memory.
inline void launch_until_told(const char* words, CUfunction function, CUstream stream) {
    std::string log;
    for (int i = 0; i < 5000 && log.find(words) == std::string::npos; ++i) {
        launch(function, 528, stream);
        DO(cuCtxSynchronize());
        log = told_to_gate();
    }
    CHECK(log.find(words) != std::string::npos);
}

}  // namespace explsched::test
