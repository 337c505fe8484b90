__global__ void differences(const float* in, float* out, int n) {
    __shared__ float part[257];
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    part[threadIdx.x] = in[i];
    out[i] = part[threadIdx.x + 1] - part[threadIdx.x];
}

__global__ void halves(float* data) {
    __shared__ float part[256];
    part[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    for (int s = 128; s > 0; s >>= 1) {
        if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];
    }
    if (threadIdx.x == 0) data[0] = part[0];
}

__global__ void rows(const float* a, float* out) {
    __shared__ float tile[16][16];
    tile[threadIdx.y][threadIdx.x] = a[threadIdx.y * 16 + threadIdx.x];
    float sum = 0;
    for (int k = 0; k < 16; ++k) sum += tile[threadIdx.y][k];
    out[threadIdx.y * 16 + threadIdx.x] = sum;
}

__global__ void counted(const int* which, int* out) {
    __shared__ int count[256];
    count[threadIdx.x] = 0;
    atomicAdd(&count[which[threadIdx.x]], 1);
    __syncthreads();
    out[threadIdx.x] = count[threadIdx.x];
}
