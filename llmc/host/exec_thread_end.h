// For models of asynchronous instructions: a look at every thread of a kernel as it ends, which may end its block with
// a fault (Block::fail). Set when such an instruction is first met; of the calling thread of the pool, for good, so
// that the function must tell for itself whether it has anything to say about the running block.
#pragma once

namespace host {

extern __thread void (*at_thread_end)();   // null: nothing to do. Threads that never waited are not looked at.

}
