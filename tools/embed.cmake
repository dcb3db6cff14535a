# Writes the files of weft watch as C arrays, so that the program is a single file: cmake -DOUT=... -DROOT=... -P embed.cmake
file(READ ${ROOT}/page.html page HEX)
file(READ ${ROOT}/watch.css style HEX)
file(READ ${ROOT}/watch.js script HEX)
foreach(name page style script)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," ${name} "${${name}}")
endforeach()
file(WRITE ${OUT} "#include \"observe/watch.h\"
static const unsigned char page[] = {${page}};
static const unsigned char style[] = {${style}};
static const unsigned char script[] = {${script}};
const WatchAsset watch_assets[] = {
    {\"/\", \"text/html; charset=utf-8\", page, sizeof page},
    {\"/watch.css\", \"text/css; charset=utf-8\", style, sizeof style},
    {\"/watch.js\", \"text/javascript; charset=utf-8\", script, sizeof script},
    {0, 0, 0, 0},
};
")
