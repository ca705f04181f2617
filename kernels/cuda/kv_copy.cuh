// Slots to a staging buffer and back, in all layers or in some: copies on write (all sources are
// read before any target is written: two launches), and the way of pages to and from the host's
// memory, which the kernel reads and writes where it is.
#pragma once
#include "args.cuh"

constexpr int kCopyThreads = 256;

LM_DEV void copy_slots(const CopyArgs &args) {
    const int pieces = args.bytes / 16, page_size = 1 << args.page_shift;
    const u64 runs = (u64)global_load(args.counts + kCopies) * args.layers * 2 * args.kv_heads;
    for (u64 work = (u64)block_id() * kCopyThreads + thread_id(); work < runs * pieces;
         work += (u64)num_blocks() * kCopyThreads) {
        const u64 run = work / pieces,
                  piece = work % pieces;  // run: (copy, layer, keys or values, head)
        const int head = (int)(run % args.kv_heads), side = (int)(run / args.kv_heads % 2);
        const u64 layer = args.first_layer + run / args.kv_heads / 2 % args.layers,
                  copy = run / args.kv_heads / 2 / args.layers;
        const int slot = global_load(args.slots + copy);
        const u64 row = args.rows ? (u64)global_load(args.rows + copy) : copy;
        const u64 page = layer * args.pages + (slot >> args.page_shift);
        const u64 at =
            (((page * 2 + side) * args.kv_heads + head) * page_size + (slot & (page_size - 1))) *
            args.bytes;
        Quad *there = reinterpret_cast<Quad *>(args.pool + at) + piece;
        Quad *here = reinterpret_cast<Quad *>(
                         args.staging +
                         (((row * args.all_layers + layer) * 2 + side) * args.kv_heads + head) *
                             args.bytes) +
                     piece;
        if (args.is_gather)
            global_store(here, global_load(there));
        else
            global_store(there, global_load(here));
    }
}
