// Waits between the kernels of best-effort graphs, so that a graph of milliseconds gives way within itself.
#pragma once

#include "kernel_intercept/interposer/contexts.hpp"

namespace explsched::intercept {

// Whether graphs that are instantiated now are to have them.
bool new_graphs_wait(const ContextRecord& gpu) noexcept;

// While it lives, `graph` has a wait for the context's gate (null: none) after every few kernels, where it
// can be cut in two between one node and another, and the second is no collective: an executable graph that
// is made of it meanwhile keeps them, and the program's graph does not. The places depend on the graph's form
// and on where collectives are, so that an update finds the same ones.
class GraphWaits {
   public:
    GraphWaits(Graph graph, const ContextRecord* gpu) noexcept;
    ~GraphWaits() { remove(); }
    GraphWaits(const GraphWaits&) = delete;
    GraphWaits& operator=(const GraphWaits&) = delete;

    bool any() const noexcept { return count_ != 0; }
    void remove() noexcept;

   private:
    struct Cut {
        GraphNode before, after, wait;
    };
    bool add(const ContextRecord& gpu, GraphNode before, GraphNode after) noexcept;

    Graph graph_;
    Cut* cuts_{nullptr};
    std::size_t count_{0};
};

}  // namespace explsched::intercept
