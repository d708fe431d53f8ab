// What instantiated graphs cost: added up when a graph is instantiated or changed, charged at each launch.
//
// To the gate a graph is one launch. Its name stands for what is in it: two graphs of the same kernels have
// the same key, so that a timed launch of one tells the cost of the other, in a later run too.
#pragma once

#include "kernel_intercept/interposer/graph_waits.hpp"
#include "kernel_intercept/interposer/launch.hpp"

namespace explsched::intercept {

// Adds up the kernel nodes of a graph, child graphs included. Bodies of conditional nodes are not seen: how
// often they run is decided on the GPU, and timing covers it. `waits_in` is the context for whose gate it
// waits; null: for none. False if there is no room to know it: an update would not find its waits.
bool note_graph(GraphExec exec, Graph graph, Context waits_in, const ContextRecord& gpu) noexcept;

// The context for whose gate it waits, whichever is current now: an update may not change it. Null if it does
// not wait.
const ContextRecord* waiting_context(GraphExec exec) noexcept;

// It is about to be destroyed: another one may come at its address.
void forget_graph(GraphExec exec) noexcept;

// The same for an executable graph that was given the contents of another graph.
void note_update(GraphExec exec, Graph graph, const ContextRecord& gpu) noexcept;

// One kernel node of an executable graph was given other parameters.
void note_node(GraphExec exec, GraphNode node, const KernelNodeParams& params,
               const ContextRecord& gpu) noexcept;

// A child graph of an executable graph was given the contents of another graph of the same shape.
void note_child(GraphExec exec, GraphNode node, Graph child, const ContextRecord& gpu) noexcept;

// A node of an executable graph is left out of its launches from now on, or is back.
void note_enabled(GraphExec exec, GraphNode node, bool enabled, const ContextRecord& gpu) noexcept;

struct GraphLaunch {
    KernelCost cost;        // the manager's figure if it has one
    gate::Sample estimate;  // for a timing: the shares are those of its kernels as they are known now
    std::uint64_t key_hash;
    gate::Patience patience;  // must not wait if a kernel in it must not wait
};

// Of a graph never seen (or forgotten, see handle_table.hpp), the cost of one unknown kernel.
GraphLaunch graph_launch(GraphExec exec, const ContextRecord& gpu) noexcept;

}  // namespace explsched::intercept
