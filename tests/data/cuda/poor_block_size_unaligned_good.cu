#define THREADS 128

__global__ void scale(float* data) { data[blockIdx.x * THREADS + threadIdx.x] *= 2; }

void run(float* data, int blocks) { scale<<<blocks, dim3(THREADS / 4, 4)>>>(data); }
