#include <cooperative_groups.h>

__global__ void add(const float* a, const float* b, float* c, int n) {
    auto grid = cooperative_groups::this_grid();
    for (int i = grid.thread_rank(); i < n; i += grid.size()) c[i] = a[i] + b[i];
}

__global__ void reset(int* counter) { *counter = 0; }

void run(const float* a, const float* b, float* c, int n, int* counter) {
    add<<<16, 128>>>(a, b, c, n);
    reset<<<1, 1>>>(counter);
}
