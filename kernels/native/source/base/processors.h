// The processors that this process may use.
#pragma once
#include <string>
#include <vector>

namespace keras_linrec {

struct Processors {
  int count;
  // Their numbers, if threads have to be bound to them; empty if new threads
  // run on all of them anyway.
  std::vector<int> bound;
};

// The processors that the affinity of the calling thread allows, at most as
// many as the quota of the control groups. An OpenMP runtime under
// OMP_PROC_BIND binds the main thread, and so the threads that it starts, to
// one of its places: then the processors of all places.
Processors available_processors();

// The processors that a quota of CPU time is worth, rounded up, or 0 if there
// is none. `groups` is the file that names this process's control groups
// (/proc/self/cgroup), and `root` the folder in which they are mounted
// (/sys/fs/cgroup). Both versions of control groups are read, with the groups
// that enclose them.
int processors_of_quota(const std::string& groups, const std::string& root);

}  // namespace keras_linrec
