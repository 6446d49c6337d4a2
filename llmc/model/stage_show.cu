#include "llmc/model/stage.h"

// In the order in which the forward makes them, under llm.c's names.
void Stage::show_block(int layer, const BlockActivations& a, const floatX* out) const {
    const int unit = table().layer_unit(layer);
    const std::int64_t rows = sizes_.rows(), heads = std::int64_t{sizes_.NH} * sizes_.HS;
    show_(unit, "ln1", a.ln1, border_elements());
    show_(unit, "qkv", a.qkv, rows * 3 * heads);
    show_(unit, "atty", a.atty, rows * heads);
    show_(unit, "residual2", a.residual2, border_elements());
    show_(unit, "ln2", a.ln2, border_elements());
    show_(unit, "fch", a.fch, rows * sizes_.F);
    show_(unit, "fch_gelu", a.fch_gelu, rows * sizes_.F);
    show_(unit, "residual3", out, border_elements());
}
