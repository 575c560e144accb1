// A Stan process ends with the process (on Linux: the thread) that started it, however that one ends: a killed worker
// leaves nothing running. Holds from before main().
#pragma once
#ifdef __linux__
#include <csignal>
#include <sys/prctl.h>
#include <unistd.h>

namespace dpdist {
inline const bool ends_with_parent = [] {
  const pid_t parent = getppid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent)  // it ended before the line above could take effect
    raise(SIGKILL);
  return true;
}();
}  // namespace dpdist
#endif
