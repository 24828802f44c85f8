#include "base/processors.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#ifdef __linux__
#include <dlfcn.h>
#include <link.h>
#include <sched.h>
#elif defined(_WIN32)
#include <windows.h>
#endif

namespace keras_linrec {
namespace {

constexpr double no_quota = std::numeric_limits<double>::infinity();

// Version 2 has one file: "max 100000" or "150000 100000".
double quota_in(const std::string& folder) {
  double time = 0.0, period = 0.0;
  if (std::ifstream(folder + "/cpu.max") >> time >> period)
    return time / period;
  if (std::ifstream(folder + "/cpu.cfs_quota_us") >> time && time > 0.0 &&
      std::ifstream(folder + "/cpu.cfs_period_us") >> period)
    return time / period;
  return no_quota;
}

// The least quota of a group and of those that enclose it. A container may see
// its own group as the root, under the path that the host gives it: folders
// that do not exist have no quota.
double least_quota(const std::string& mount, std::string group) {
  double least = quota_in(mount);
  while (group.size() > 1) {
    least = std::min(least, quota_in(mount + group));
    group.resize(group.rfind('/'));
  }
  return least;
}

#ifdef __linux__

// The path of the OpenMP runtime that is loaded, or an empty one.
std::string openmp_runtime() {
  std::string path;
  dl_iterate_phdr(
      [](dl_phdr_info* library, size_t, void* found) {
        const std::string name = library->dlpi_name;
        if (name.find("/libgomp") == name.npos &&
            name.find("/libomp") == name.npos &&
            name.find("/libiomp") == name.npos)
          return 0;
        *static_cast<std::string*>(found) = name;
        return 1;
      },
      &path);
  return path;
}

// The processors of the places between which an OpenMP runtime binds threads.
std::vector<int> openmp_places() {
  std::vector<int> places;
  const std::string path = openmp_runtime();
  void* library =
      path.empty() ? nullptr : dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return places;
  const auto binds =
      reinterpret_cast<int (*)()>(dlsym(library, "omp_get_proc_bind"));
  const auto count =
      reinterpret_cast<int (*)()>(dlsym(library, "omp_get_num_places"));
  const auto size = reinterpret_cast<int (*)(int)>(
      dlsym(library, "omp_get_place_num_procs"));
  const auto numbers = reinterpret_cast<void (*)(int, int*)>(
      dlsym(library, "omp_get_place_proc_ids"));
  for (int i = 0; binds && binds() && i < count(); i++) {
    std::vector<int> place(size(i));
    numbers(i, place.data());
    places.insert(places.end(), place.begin(), place.end());
  }
  dlclose(library);
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  return places;
}

#endif

Processors allowed_processors() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    std::vector<int> places = openmp_places();
    const int count = CPU_COUNT(&set), all = static_cast<int>(places.size());
    if (all > count) return {all, std::move(places)};
    return {count, {}};
  }
#elif defined(_WIN32)
  DWORD_PTR allowed = 0, all = 0;
  if (GetProcessAffinityMask(GetCurrentProcess(), &allowed, &all) && allowed)
    return {__builtin_popcountll(allowed), {}};
#endif
  const unsigned count = std::thread::hardware_concurrency();
  return {count ? static_cast<int>(count) : 1, {}};
}

}  // namespace

int processors_of_quota(const std::string& groups, const std::string& root) {
  double least = no_quota;
  std::ifstream file(groups);
  // Each line has a number, the controllers, and the group.
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string group = line.substr(second + 1);
    std::istringstream names(line.substr(first + 1, second - first - 1));
    if (names.str().empty()) least = std::min(least, least_quota(root, group));
    for (std::string name; std::getline(names, name, ',');)
      if (name == "cpu")
        least = std::min(
            {least, least_quota(root + "/cpu", group),
             least_quota(root + "/" + names.str(), group)});
  }
  return least == no_quota ? 0
                           : std::max(1, static_cast<int>(std::ceil(least)));
}

Processors available_processors() {
  Processors processors = allowed_processors();
  const int quota =
      processors_of_quota("/proc/self/cgroup", "/sys/fs/cgroup");
  if (quota) processors.count = std::min(processors.count, quota);
  return processors;
}

}  // namespace keras_linrec
