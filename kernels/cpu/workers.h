// A few threads that stay warm between calls and share out numbered pieces of work.
//
// The caller works too: `Workers(1)` starts no thread. Between pieces of one step a worker spins briefly, then sleeps.
// The caller waits for workers that are at a piece, never for one that has not come yet: on a busy machine that one may
// come long after the work is done. Which worker does which piece is left to chance; nothing computed may depend on it.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace lmprog {

class Workers {
  public:
    explicit Workers(int count) {
        for (int i = 1; i < count; i++) threads_.emplace_back([this, i] { serve(i); });
    }

    ~Workers() {
        {
            std::lock_guard<std::mutex> hold(mutex_);
            stop_ = true;
            gate_.store(next_round(), std::memory_order_release);
        }
        wake_.notify_all();
        for (std::thread &thread : threads_) thread.join();
    }

    Workers(const Workers &) = delete;
    Workers &operator=(const Workers &) = delete;

    int count() const { return static_cast<int>(threads_.size()) + 1; }

    // Calls piece(index, worker) for every index below `pieces` and returns when all are done. `alone`: the caller does
    // everything, since it is too little to wake anybody for.
    template <class Piece>
    void share(int pieces, bool alone, Piece &&piece) {
        if (threads_.empty() || alone) {
            for (int i = 0; i < pieces; i++) piece(i, 0);
            return;
        }
        call_ = [](void *with, int index, int worker) {
            (*static_cast<std::remove_reference_t<Piece> *>(with))(index, worker);
        };
        with_ = &piece;
        pieces_ = pieces;
        next_.store(0, std::memory_order_relaxed);
        {
            std::lock_guard<std::mutex> hold(mutex_);
            gate_.store(next_round() | kOpen, std::memory_order_release);
        }
        wake_.notify_all();
        drain(0);
        gate_.fetch_and(~kOpen, std::memory_order_relaxed);  // who comes from now on finds nothing to do
        for (int i = 0; (gate_.load(std::memory_order_acquire) & kInside) != 0; i++)
            i < kSpins ? pause() : std::this_thread::yield();  // a worker may have lost its processor to others
    }

  private:
    static constexpr int kSpins = 2000;  // about 40 microseconds: the gap between two layers of a small model
    // The gate: the number of the round, whether it is open, and how many workers are inside.
    static constexpr uint64_t kInside = 0xffff, kOpen = 1 << 16, kRound = 1 << 17;

    uint64_t next_round() const { return (gate_.load(std::memory_order_relaxed) / kRound + 1) * kRound; }

    static void pause() {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#else
        std::this_thread::yield();
#endif
    }

    void drain(int worker) {
        for (int i = next_.fetch_add(1); i < pieces_; i = next_.fetch_add(1)) call_(with_, i, worker);
    }

    // Whether the round that `gate` shows could be entered; `gate` is what it was found to be.
    bool enter(uint64_t &gate) {
        while (gate & kOpen)
            if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel, std::memory_order_acquire))
                return true;
        return false;
    }

    void serve(int worker) {
        for (uint64_t seen = 0;;) {
            uint64_t gate = gate_.load(std::memory_order_acquire);
            for (int i = 0; i < kSpins && gate / kRound == seen; i++) {
                pause();
                gate = gate_.load(std::memory_order_acquire);
            }
            if (gate / kRound == seen) {
                std::unique_lock<std::mutex> hold(mutex_);
                wake_.wait(hold, [&] { return (gate = gate_.load(std::memory_order_acquire)) / kRound != seen; });
            }
            if (stop_) return;
            if (enter(gate)) {
                drain(worker);
                gate_.fetch_sub(1, std::memory_order_release);
            }
            seen = gate / kRound;  // rounds may be missed: others have done their work then
        }
    }

    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<uint64_t> gate_{0};
    std::atomic<int> next_{0};
    void (*call_)(void *, int, int) = nullptr;
    void *with_ = nullptr;
    int pieces_ = 0;
    std::atomic<bool> stop_{false};
};

}  // namespace lmprog
