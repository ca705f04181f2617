"""Faults to be planted in kernels and plan, one at a time: (file, what stands there, what shall
stand there).
"""

from __future__ import annotations

Fault = tuple[str, str, str]
_TREE, _SAMPLE, _PLAN = "tree_attention.cuh", "mask_sample.cuh", "items.py"
_SMALL_WAIT = (
    "        copy_wait<Tile::stages - 2>();\n        block_sync();\n        const "
    "int next = tile + Tile::stages - 1;\n        if (next < num_tiles) load_tile<T, K, dim, "
    "Tile::small_threads>"
)
_LARGE_WAIT = _SMALL_WAIT.replace("small_threads", "large_threads")

ATTENTION: dict[str, Fault] = {
    "small tile: no barrier after the wait": (_TREE, _SMALL_WAIT, _SMALL_WAIT.replace("        block_sync();\n", "")),
    "large tile: no barrier after the wait": (_TREE, _LARGE_WAIT, _LARGE_WAIT.replace("        block_sync();\n", "")),
    "small tile: wait one group too few": (_TREE, _SMALL_WAIT, _SMALL_WAIT.replace("stages - 2>", "stages - 1>")),
    "large tile: wait one group too few": (_TREE, _LARGE_WAIT, _LARGE_WAIT.replace("stages - 2>", "stages - 1>")),
    "next tile lands on the one in use": (
        _TREE,
        "load_tile<T, K, dim, Tile::large_threads>(args, item, head, next, next % Tile::stages",
        "load_tile<T, K, dim, Tile::large_threads>(args, item, head, next, tile % Tile::stages",
    ),
    "wrong column of a matrix load": (_TREE, "Tile::steps + ((lane >> 3) & 1)", "Tile::steps + " "((lane >> 4) & 1)"),
    "wrong row of a transposed load": (_TREE, "swizzled<Tile::pieces>(row + (lane & 15), block * 2", "swizzled<Tile::pieces>(row + (lane & 7), block * 2"),
    "no causal mask": (_TREE, " || at > seen.upto", ""),
    "no window": (_TREE, " || at <= seen.after) s[i", ") s[i"),
    "window one too long": (_TREE, "? position - args.window : -1", "? position - " "args.window - 1 : -1"),
    "keys beyond the end count": (_TREE, "if (at >= end || ", "if ("),
    "no barrier between maxima and weights": (_TREE, "        block_sync();\n        " "float " "base[2];", "        float base[2];"),
    "no barrier between weights and values": (
        _TREE,
        "a[x]);\n        }\n        block_sync();",
        "a[x]);\n        }",
    ),
    "no barrier between items": (_TREE, "        block_sync();  // the ring", "        // " "the ring"),
    "small tile: sums are not rescaled": (_TREE, "            sum[x] *= factor;\n", ""),
    "large tile: sums are not rescaled": (_TREE, "sum[g][x] *= factor;", ";"),
    "a row without a visible key yet": (_TREE, "now == minus_infinity() ? 0.0f : now", "now"),
    "scores in base e": (_TREE, "return {args.scale * log2_e, cap", "return {args.scale, cap"),
    "cap without its double angle": (_TREE, "(2.0f * log2_e)", "log2_e"),
    "a cap in base e": (_TREE, "cap * log2_e,", "cap,"),
    "partials counted from position 0": (_TREE, " - global_load(args.first_parts + token)", ""),
    "page table of the first row": (_TREE, "args.pages + item.page_base + (at", "args.pages + (at"),
    "keys in place of values": (_TREE, "swizzled<pieces>(row, piece), from + half", "swizzled<pieces>(row, piece), from"),
    "heads in the wrong order": (
        _TREE,
        "at_head[x] = head * group + row % group;\n        sight[x] = sight_of(args, " "token[x]);\n    }\n    u32 q[Tile::loads][4] = {};",
        "at_head[x] = row % group * args.kv_heads + head;\n        sight[x] = " "sight_of(args, " "token[x]);\n    }\n    u32 q[Tile::loads][4] = {};",
    ),
    "several partials written directly": (_TREE, "if (end - start == 1) {", "if (end - " "start " ">= 1) {"),
    "weights packed in the wrong order": (_TREE, "a[1] = pack<T>(s[0][2], s[0][3]);", "a[1] = pack<T>(s[0][3], s[0][2]);"),
    "weight of a partial in base e": (_TREE, "maximum[x] + log2_fast(total));\n    " "}\n}\n\n// --- 64", "maximum[x] + log_exact(total));\n    }\n}\n\n// --- 64"),
    "merge in base e": ("tree_merge.cuh", "weight = exp2_fast(", "weight = exp_exact("),
    "a sink in base e": ("tree_merge.cuh", "? exp2_fast(", "? exp_exact("),
    "a sink that takes nothing": ("tree_merge.cuh", "args.sinks ? exp2_fast(sink - maximum) : 0.0f", "0.0f"),
    "a sink that is read as a partial": ("tree_merge.cuh", "args.sinks ? all - 1 : all", "all"),
    "the sink of the first head for all": ("tree_merge.cuh", "args.sinks + head", "args.sinks"),
    "merge: the maximum without the last partial": ("tree_merge.cuh", "for (int part = start; part < end; part++) maximum", "for (int part = start; part < end - 1; part++) maximum"),
    "page offsets in 32 bits": (_TREE, "args.kv + page * 2 * half +", "args.kv + (u32)page * 2 * (u32)half +"),
    "merge without the last partial": ("tree_merge.cuh", "float o[own] = {}, sum =", "if (end - start > 2) continue; float o[own] = {}, sum ="),
    "merge of what was written directly": ("tree_merge.cuh", "if (all - start < 2) continue;", ""),
    "barrier that half of the threads reach": (_TREE, "    block_sync();\n    for (int " "x " "= " "0; x < 2; x++) {\n        float total", "    if (warp) block_sync();\n    for (int x = 0; x < 2; x++) {\n        float total"),
}  # fmt: skip

BETWEEN: dict[str, Fault] = {
    "blocks beyond the last are written": (_TREE, "if (is_even || warp * slice + i < Tile::blocks)\n                target", "target"),
    "rows that are no power of two are swizzled too": (_TREE, "if constexpr (!Pitch<pieces>::is_swizzled) return (u32)(row * Pitch<pieces>::value + piece) * 16;", ""),
}  # fmt: skip
"""With heads that are no power of two."""

SAMPLING: dict[str, Fault] = {
    "histogram read before it is empty": (_SAMPLE, "shared_store<u32>(i * 4, 0);\n        block_sync();", "shared_store<u32>(i * 4, 0);"),
    "top-p one token too many": (_SAMPLE, "if (own[i] && (double)before < wanted)", "if (own[i] && (double)before <= wanted)"),
    "the highest word of a weight is lost": (_SAMPLE, "if (high) shared_add(at + kHistogramBytes / 2, high);", ""),
    "one of the histograms is not joined": (_SAMPLE, "for (int i = 0; i < kHistograms; i++) sum +=", "for (int i = 0; i < 1; i++) sum +="),
    "a not-finite logit is seen by its own thread alone": (_SAMPLE, "return block_sum(broken) != 0;", "block_sum(broken); return broken != 0;"),
    "a not-finite logit is seen by its own warp alone": (_SAMPLE, "return block_sum(broken) != 0;", "block_sum(broken); return warp_sum(broken) != 0;"),
    "the best token before the edits": (_SAMPLE, "block_sync();\n                find_best(row, best_token);", "block_sync();"),
    "logits are not restored": (_SAMPLE, "            restore_row(args, pick, logits);\n", ""),
    "mask bits from the wrong end": (_SAMPLE, ">> (token & 31) & 1", ">> (31 - (token & 31)) & 1"),
    "choice without what lies before": (_SAMPLE, "            point -= own;", ""),
    "greedy takes the last of equals": (_SAMPLE, "other == best && its < token", "other == best && its > token"),
    "penalty multiplies what is positive": (_SAMPLE, "old > 0.0f ? divide(old, repeat) " ": " "old " "* repeat", "old * repeat"),
    "edits of one thread race with the scan": (_SAMPLE, "            edit_row(args, " "pick, " "logits);\n            block_sync();", "            edit_row(args, pick, logits);"),
    "scores of the warps are not joined": ("score_rows.cuh", "join(maximum, sum, " "part.x, " "part.y);", "maximum = part.x, sum = part.y;"),
}  # fmt: skip

PLAN: dict[str, Fault] = {
    "split counted one too late": (_PLAN, "(positions >= self._split[rows])", "(positions " "> " "self._split[rows])"),
    "every chunk taken for whole": (_PLAN, "is_whole = (index + 1) * chunk <= " "self._lens[row]", "is_whole = index >= 0"),
    "lists begin at 0": (_PLAN, "tile_begin += np.repeat(np.cumsum(lengths) - lengths, " "num_tiles)", "pass"),
    "tiles dropped that still see the run": (_PLAN, "(least_low[tile] < end)", "(least_low[tile] <= begin)"),
    "mask left out for the first queries of a tile": (_PLAN, "(end - 1 > " "least_at[tile])", "(end - 1 > most_at[tile])"),
    "mask left out for windows": (_PLAN, "| (start < most_low[tile])", ""),
    "run begins where the last query looks": (_PLAN, "np.maximum(least_low[tile] - " "begin, " "0)", "np.maximum(most_low[tile] - begin, 0)"),
    "row sets told apart by size only": (_PLAN, "names = np.add.reduceat(marks, " "segments.row_starts)", "names = segments.num_rows"),
    "parting at the longest common beginning": (_PLAN, "num_shared = " "np.minimum.reduceat", "num_shared = np.maximum.reduceat"),
    "pages told apart without those before them": (_PLAN, "names: NDArray[np.uint64] = " "sums " "- np.repeat(before, counts)", "names = self._batch.page_size * np.ones_like(sums)"),
    "stale page table: the next row's": (_PLAN, "items[:, 0] = " "self._page_starts[segments.rows", "items[:, 0] = self._page_starts[1:][segments.rows"),
    "window longer by one": (_PLAN, "- (window - 1), 0)", "- window, 0)"),
}  # fmt: skip

_PRODUCT, _DEVICE = "product.cuh", "dev.cuh"
PRODUCTS: dict[str, Fault] = {
    "product: no barrier before the warps' sums are joined": (_PRODUCT, "block_sync();\n    for (int i = thread_id(); i < width * 16", "for (int i = thread_id(); i < width * 16"),
    "product: no barrier before the next tile's sums": (_PRODUCT, "from_float<T>(total));\n    }\n    block_sync();", "from_float<T>(total));\n    }"),
    "product: sums of the first warp alone": (_PRODUCT, "for (int warp = 0; warp < kProductWarps; warp++)\n            total +=", "for (int warp = 0; warp < 1; warp++)\n            total +="),
    "product: the chunk in hand in place of the next": (_PRODUCT, "load_weights<T, kind, Tile>(next, args, first, chunk + kProductWarps);", "load_weights<T, kind, Tile>(next, args, first, chunk);"),
    "product: rows beyond the last output are read": (_PRODUCT, "weight_row(args, output < args.outputs ? output : args.outputs - 1)", "weight_row(args, output)"),
    "product: inputs beyond the last are read": (_PRODUCT, "if (at < tokens && input < args.inputs)", "if (at < tokens)"),
    "product: tokens beyond the count are written": (_PRODUCT, "if (token + column >= tokens || output >= args.outputs) continue;", "if (output >= args.outputs) continue;"),
    "product: 4 bits in the order of the word": (_PRODUCT, "(words[0] >> (pair * 4) & 0x000f000fu)", "(words[0] >> (pair * 8) & 0x000f000fu)"),
    "product: 4 bits without their 8": (_PRODUCT, "less = is_long ? 0xe408e408u : 0xc308c308u;", "less = is_long ? 0xe400e400u : 0xc300c300u;"),
    "product: scale of the chunk's first group": (_PRODUCT, "(kind == kInt4 ? run * 32 : 0)", "0"),
    "product: scale of the other half's output": (_PRODUCT, "sums[m][j][i] += scale[i >> 1] * found[i];", "sums[m][j][i] += scale[i & 1] * found[i];"),
    "product: words of another run": (_PRODUCT, "to[0] = run ? quad.word[2] : quad.word[0];", "to[0] = run ? quad.word[1] : quad.word[0];"),
    "product: bytes without their sign": (_PRODUCT, "bits_float(0x4b000000u | (bits ^ 128)) - 8388736.0f", "bits_float(0x4b000000u | bits) - 8388608.0f"),
    "product: steps of the right side swapped": (_PRODUCT, "multiply_add<T>(found, a[step], x[j].word + step * 2);", "multiply_add<T>(found, a[step], x[j].word + (1 - step) * 2);"),
    "product: floats of 8 bits without their sign": (_DEVICE, "(bits & 127) << 20 | (bits & 128) << 24", "(bits & 127) << 20"),
    "unpacked: pieces of 4 bits in the order of bytes": (_PRODUCT, "const int quarter = kind == kInt4 ? within % 32 / 8 : within / 16;", "const int quarter = kind == kInt4 ? within % 64 / 16 : within / 16;"),
    "unpacked: the first outputs for every tile": (_PRODUCT, "weight_row(args, args.first + row) + chunk * 64 + quarter * 16 + run * words * 4);\n        u32", "weight_row(args, row) + chunk * 64 + quarter * 16 + run * words * 4);\n        u32"),
}  # fmt: skip

_ROPE = "rope_append.cuh"
FLOAT8: dict[str, Fault] = {
    "bytes: values divided by the scale of keys": (_ROPE, "is_value ? args.value_factor : args.key_factor", "args.key_factor"),
    "bytes: nothing is bounded": (_DEVICE, "(rounded < 126 ? rounded : 126)", "rounded"),
    "bytes: what is no number becomes one": (_DEVICE, "if (size > 0x7f800000u) return 127;", ""),
    "bytes: read without their sign": (_DEVICE, "sizes | (x & 0x00800080u) << 8", "sizes"),
    "bytes: neighbours of a query in the order of words": (_TREE, "*first = (low & 0xffff) | high << 16;\n    *second = low >> 16 | (high & 0xffff0000u);", "*first = low;\n    *second = high;"),
    "bytes: columns in the order of 16 bits": (_TREE, "write(block * 16 + own * 4 + e * 2,", "write(block * 16 + e * 8 + own * 2,"),
    "bytes: values read without their scale": (_TREE, "r[1][e] * args.value_scale", "r[1][e]"),
    "bytes: no number unseen among values": (_TREE, "none.look(b[2 + i]);", ""),
}  # fmt: skip
