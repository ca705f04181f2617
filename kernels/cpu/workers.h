// A few threads that stay warm between calls and share out numbered pieces of work.
//
// The caller works too: `Workers(1)` starts no thread. Between pieces of one step a worker spins briefly, then sleeps.
// Which worker does which piece is left to chance; nothing that is computed may depend on it.
#pragma once
#include <atomic>
#include <condition_variable>
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
            round_.fetch_add(1, std::memory_order_release);
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
        busy_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
        {
            std::lock_guard<std::mutex> hold(mutex_);
            round_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        drain(0);
        for (int i = 0; busy_.load(std::memory_order_acquire) != 0; i++)
            i < kSpins ? pause() : std::this_thread::yield();  // a worker may have lost its processor to others
    }

  private:
    static constexpr int kSpins = 2000;  // about 40 microseconds: the gap between two layers of a small model

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

    void serve(int worker) {
        for (unsigned seen = 0;;) {
            for (int i = 0; i < kSpins && round_.load(std::memory_order_acquire) == seen; i++) pause();
            if (round_.load(std::memory_order_acquire) == seen) {
                std::unique_lock<std::mutex> hold(mutex_);
                wake_.wait(hold, [&] { return round_.load(std::memory_order_acquire) != seen; });
            }
            seen++;  // rounds cannot be missed: the next one starts only when all workers have ended this one
            if (stop_) return;
            drain(worker);
            busy_.fetch_sub(1, std::memory_order_release);
        }
    }

    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<unsigned> round_{0};
    std::atomic<int> next_{0}, busy_{0};
    void (*call_)(void *, int, int) = nullptr;
    void *with_ = nullptr;
    int pieces_ = 0;
    bool stop_ = false;
};

}  // namespace lmprog
