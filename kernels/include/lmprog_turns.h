// Who uses an automaton now. A mask that is made apart, in a thread of its own, lets other calls in between two of its
// steps. Knows threads; knows no automata.
#ifndef LMPROG_TURNS_H
#define LMPROG_TURNS_H
#include <atomic>
#include <condition_variable>
#include <mutex>

namespace lmprog {

class Turns {
  public:
    // For as long as it lives, nobody else has a turn.
    class Turn {
      public:
        explicit Turn(Turns& turns) : turns_(turns) { turns_.take(); }
        ~Turn() { turns_.end(); }
        Turn(const Turn&) = delete;
        Turn& operator=(const Turn&) = delete;

      private:
        Turns& turns_;
    };

    bool others_wait() const { return num_waiting_.load(std::memory_order_relaxed) > 0; }

    // By whoever has the turn: all that wait have theirs first.
    void let_others() {
        std::unique_lock<std::mutex> lock(mutex_);
        is_taken_ = false;
        changed_.notify_all();
        changed_.wait(lock, [this] { return !is_taken_ && !others_wait(); });
        is_taken_ = true;
    }

  private:
    void take() {
        std::unique_lock<std::mutex> lock(mutex_);
        if (is_taken_) {
            num_waiting_++;
            changed_.wait(lock, [this] { return !is_taken_; });
            num_waiting_--;
        }
        is_taken_ = true;
    }
    void end() {
        const std::lock_guard<std::mutex> lock(mutex_);
        is_taken_ = false;
        changed_.notify_all();
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::atomic<int> num_waiting_{0};
    bool is_taken_ = false;
};

}  // namespace lmprog
#endif
