__global__ void evens(float* data) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x % 2 == 0) {
        data[i] = sinf(data[i]);
    } else {
        data[i] = cosf(data[i]);
    }
}

__global__ void two_sums(float* data, int n) {
    float sum = 0.0f;
    if (threadIdx.x % 2 == 0) {
        for (int k = 0; k < n; ++k) sum = sum * 1.5f + 1.0f;
    } else {
        for (int k = 0; k < n; ++k) sum = sum * 0.5f - 1.0f;
    }
    data[threadIdx.x] = sum;
}
