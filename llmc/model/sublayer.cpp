#include "llmc/model/sublayer.h"

#include "llmc/model/sublayers/attention.h"
#include "llmc/model/sublayers/experts.h"
#include "llmc/model/sublayers/mlp.h"

const SublayerType& type_of(SublayerKind kind) {
    static constexpr SublayerType attention = {Attention::parameters, Attention::kept, Attention::scratch,
                                               make_sublayer<Attention>};
    static constexpr SublayerType mlp = {Mlp::parameters, Mlp::kept, Mlp::scratch, make_sublayer<Mlp>};
    static constexpr SublayerType experts = {Experts::parameters, Experts::kept, Experts::scratch,
                                             make_sublayer<Experts>};
    switch (kind) {
        case SublayerKind::attention: return attention;
        case SublayerKind::mlp: return mlp;
        case SublayerKind::experts: return experts;
    }
    return mlp;   // not reached: the compiler names a kind that is missing above
}
