__global__ void halves(float* data) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x / 32 % 2 == 0) {
        data[i] = sinf(data[i]);
    } else {
        data[i] = cosf(data[i]);
    }
    if (threadIdx.x % 32 == 0) {
        data[i] = 0;
    }
}
