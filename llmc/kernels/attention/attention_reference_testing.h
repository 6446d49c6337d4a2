// Attention in plain double precision, for tests: every score matrix row is written out, nothing is clever.
//
// Tensors are (B, T, NH or kv heads, HS) without gaps; lse is (B, NH, Tq). The mask and the meaning of every field are
// those of AttentionShape, whose first keys are on the host here.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "llmc/kernels/attention/attention.h"

struct AttentionReference {
    std::vector<double> out, lse, dq, dk, dv;
};

namespace attention_reference {

inline bool sees(const AttentionShape& shape, int batch, int query, int key) {
    const FirstKeys& documents = shape.documents;
    if (documents.first != nullptr && key < documents.first[batch * documents.batch + query]) return false;
    return !shape.causal || shape.k0 + key <= shape.q0 + query;
}

// First channel of (batch, token, head) of queries, and of the keys and values that the head reads.
inline std::size_t row(const AttentionShape& shape, int batch, int token, int head) {
    return ((static_cast<std::size_t>(batch) * shape.Tq + token) * shape.NH + head) * shape.HS;
}
inline std::size_t key_row(const AttentionShape& shape, int batch, int token, int head) {
    const int kv_head = head / shape.group;
    return ((static_cast<std::size_t>(batch) * shape.Tk + token) * shape.kv_heads() + kv_head) * shape.HS;
}

inline double dot(const double* a, const double* b, int count) {
    double sum = 0;
    for (int c = 0; c < count; c++) sum += a[c] * b[c];
    return sum;
}

// Probabilities of one query's keys; returns its lse.
inline double probabilities(std::vector<double>& p, const std::vector<double>& q, const std::vector<double>& k,
                            const AttentionShape& shape, int b, int i, int h) {
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    p.assign(shape.Tk, 0.0);
    for (int j = 0; j < shape.Tk; j++) {
        if (!sees(shape, b, i, j)) continue;
        p[j] = shape.scale * dot(&q[row(shape, b, i, h)], &k[key_row(shape, b, j, h)], shape.HS);
        largest = std::max(largest, p[j]);
    }
    for (int j = 0; j < shape.Tk; j++) sum += p[j] = sees(shape, b, i, j) ? std::exp(p[j] - largest) : 0.0;
    for (int j = 0; j < shape.Tk; j++) p[j] = sum > 0 ? p[j] / sum : 0.0;
    return sum > 0 ? largest + std::log(sum) : -std::numeric_limits<double>::infinity();
}

}   // namespace attention_reference

// Forward, and backward where `dout` is not empty.
inline AttentionReference reference_attention(const AttentionShape& shape, const std::vector<double>& q,
                                              const std::vector<double>& k, const std::vector<double>& v,
                                              const std::vector<double>& dout = {}) {
    using namespace attention_reference;
    AttentionReference r;
    r.out.assign(q.size(), 0.0);
    r.lse.resize(static_cast<std::size_t>(shape.B) * shape.NH * shape.Tq);
    if (!dout.empty()) {
        r.dq.assign(q.size(), 0.0);
        r.dk.assign(k.size(), 0.0);
        r.dv.assign(v.size(), 0.0);
    }
    std::vector<double> p;
    for (int b = 0; b < shape.B; b++)
        for (int h = 0; h < shape.NH; h++)
            for (int i = 0; i < shape.Tq; i++) {
                r.lse[(static_cast<std::size_t>(b) * shape.NH + h) * shape.Tq + i] =
                    probabilities(p, q, k, shape, b, i, h);
                std::size_t qi = row(shape, b, i, h);
                for (int j = 0; j < shape.Tk; j++)
                    for (int c = 0; c < shape.HS; c++) r.out[qi + c] += p[j] * v[key_row(shape, b, j, h) + c];
                if (dout.empty()) continue;
                double delta = dot(&dout[qi], &r.out[qi], shape.HS);
                for (int j = 0; j < shape.Tk; j++) {
                    std::size_t kj = key_row(shape, b, j, h);
                    double ds = p[j] * (dot(&dout[qi], &v[kj], shape.HS) - delta) * shape.scale;
                    for (int c = 0; c < shape.HS; c++) {
                        r.dq[qi + c] += ds * k[kj + c];
                        r.dk[kj + c] += ds * q[qi + c];
                        r.dv[kj + c] += p[j] * dout[qi + c];
                    }
                }
            }
    return r;
}
