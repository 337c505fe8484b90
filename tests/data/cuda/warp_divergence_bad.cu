__global__ void evens(float* data) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x % 2 == 0) {
        data[i] = sinf(data[i]);
    } else {
        data[i] = cosf(data[i]);
    }
}
