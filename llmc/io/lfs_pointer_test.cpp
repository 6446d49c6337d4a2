#include "llmc/io/lfs_pointer.h"

#include <doctest/doctest.h>

#include <string>

#include "llmc/base/error.h"
#include "llmc/io/byte_stream.h"
#include "llmc/io/safetensors.h"
#include "llmc/io/temporary_folder_testing.h"

TEST_CASE("lfs pointer: the real file is asked for, whatever reads it") {
    TemporaryFolder folder;
    const std::string path = folder / "a.gz", message = path + ": this is a Git LFS pointer";
    std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n", part(10, ' ');
    for (int extended = 0; extended < 2; extended++) {   // with a line of an extension too
        real_files().create(path)->write(bytes_of(pointer));
        CHECK_THROWS_WITH_AS(refuse_lfs_pointer(path, pointer), doctest::Contains(message.c_str()), Error);
        CHECK_THROWS_WITH_AS(refuse_lfs_pointer(path, pointer), doctest::Contains("git lfs pull"), Error);
        CHECK_THROWS_WITH_AS(read_whole(real_files(), path), doctest::Contains(message.c_str()), Error);
        CHECK_THROWS_WITH_AS(SafetensorsFile(real_files(), path), doctest::Contains(message.c_str()), Error);
#ifdef USE_ZLIB
        CHECK_THROWS_WITH_AS(open_stream(path)->read(part.data(), 10), doctest::Contains(message.c_str()), Error);
#endif
        pointer.insert(pointer.find("oid"), "ext-0-foo sha256:1\n");
    }
    for (const char* other :
         {"", "version", "version https://git-lfs.github.com/", "The version https://git-lfs.github.com/spec/v1"}) {
        real_files().create(path)->write(bytes_of(other));
        CHECK_NOTHROW(refuse_lfs_pointer(path, other));
        CHECK_NOTHROW(refuse_lfs_pointer(*real_files().open(path)));
        CHECK(read_whole(real_files(), path) == other);
    }
}
