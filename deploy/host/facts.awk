# What an OCI hook has to know of a container, from the state on stdin: which root, which Pythons may
# be there, whether it wants the hook, and what the image's own variables and its name are.
#
#   awk -v left_out=FILE -f facts.awk <STATE
#
# Prints lines of a word and a value, or nothing for a container that is left out:
#   root PATH        the container's root, on the host
#   library PATTERN  a directory in it where a Python may have its library
#   volume PATH      a mount of the container's own
#   image NAME       the image's name, where it is known
#   baseline TEXT    its variables as "env -0" writes them, in the escapes of printf's %b
# A value has no newline. Only names and values that are strings are read of any JSON.

BEGIN {
    INJECT = "rocm-autopatch/inject" # the word of Kubernetes' admission, too
    RS = "\001" # JSON has no such character, so a file is one record.
}

{ state = $0 }

END {
    walk(state, spec)
    bundle = spec[".bundle"]
    if (bundle !~ /^\//) fail("the state names no bundle")
    config = contents(bundle "/config.json")
    # Filters of system calls make most of a configuration.
    config = before(config, ",\"linux\":{", "\"process\":{ \"root\":{ \"mounts\":[ \"annotations\":{")
    if (!walk(config, spec)) fail("there is no " bundle "/config.json")
    root = spec[".root.path"]
    if (root !~ /^\//) root = bundle "/" root
    read_variables()
    if (is_off(environment["ROCM_AUTOPATCH"]) || is_off(spec[".annotations." INJECT])) exit
    find_image()
    if (is_build || is_off(labels) || is_left_out(image)) exit
    say("root", root)
    say_libraries()
    for (i = 0; (".mounts." i ".destination") in spec; i++)
        say("volume", spec[".mounts." i ".destination"])
    if (image != "") say("image", image)
    if (variables != "") say("baseline", variables)
}

# --- The container

function read_variables(    i, line, at) {
    for (i = 0; (".process.env." i) in spec; i++) {
        line = spec[".process.env." i]
        at = index(line, "=")
        environment[substr(line, 1, at - 1)] = substr(line, at + 1)
    }
}

function is_off(word) {
    gsub(/^[ \t\n]+|[ \t\n]+$/, "", word)
    return tolower(word) ~ /^(off|0|false|no|disabled)$/
}

function say_libraries(    n, path, i, base) {
    n = split(environment["PATH"] ":" spec[".process.args.0"], path, ":")
    for (i = 1; i <= n; i++)
        if (path[i] ~ /^\/.*\/s?bin(\/[^\/]*)?$/) {
            base = path[i]
            sub(/\/s?bin(\/[^\/]*)?$/, "", base)
            say_library(base)
        }
    for (i in environment)
        if (i ~ /^(VIRTUAL_ENV|CONDA_PREFIX|PYTHONHOME)$/) say_library(environment[i])
    if ("UV_PYTHON_INSTALL_DIR" in environment) say_library(environment["UV_PYTHON_INSTALL_DIR"] "/*")
}

# A prefix, and that of the Python from which a venv was made.
function say_library(base,    found, home) {
    if (base !~ /^\// || base in looked) return
    looked[base]
    say("library", base "/lib")
    say("library", base "/lib64")
    if (base ~ /\*/) return
    found = contents(root base "/pyvenv.cfg")
    if (match(found, /(^|\n)home *= *\/[^\n]*/)) {
        home = substr(found, RSTART, RLENGTH)
        sub(/^[^\/]*/, "", home)
        sub(/\/bin[ \r]*$/, "", home)
        say_library(home)
    }
}

# --- The image: each runtime keeps it in its own way, and some in none that can be read here

function find_image(    id, storage, driver, kept, name) {
    image = spec[".annotations.io.kubernetes.cri.image-name"]
    if (image == "") image = spec[".annotations.io.kubernetes.cri-o.ImageName"]
    # A step of a build: the place of the mount would become a part of the image. BuildKit calls no
    # hook. Podman's and Buildah's bundles have this name, and Docker's own builder names an image by
    # its whole number.
    is_build = bundle ~ /\/buildah[0-9]+$/
    if (match(bundle, /-containers\/[^\/]*\/userdata$/)) {
        # Podman and CRI-O
        storage = substr(bundle, 1, RSTART - 1)
        id = substr(bundle, RSTART + 12)
        sub(/\/userdata$/, "", id)
        driver = storage
        sub(/.*\//, "", driver)
        kept = stored(storage "-containers/containers.json", id)
        if (kept == "") kept = stored(storage "-containers/volatile-containers.json", id)
        if (kept ~ /^[0-9a-f]+$/)
            take_image(storage "-images/" kept "/=" base64("sha256:" kept), ".config")
    } else if (match(bundle, /\/moby\/[0-9a-f]+$/)) {
        # Docker
        id = substr(bundle, RSTART + 6)
        storage = "/var/lib/docker"
        driver = "overlay2"
        if (match(root, /\/[^\/]+\/[^\/]+\/merged$/)) {
            storage = substr(root, 1, RSTART - 1)
            driver = substr(root, RSTART + 1)
            sub(/\/.*/, "", driver)
        }
        if (!walk(contents(storage "/containers/" id "/config.v2.json"), docker)) return
        labels = docker[".Config.Labels." INJECT]
        name = docker[".Config.Image"]
        if (name ~ /^sha256:/) is_build = 1
        if (image == "") image = name
        name = docker[".Image"]
        if (sub(/^sha256:/, "", name) && name ~ /^[0-9a-f]+$/)
            take_image(storage "/image/" driver "/imagedb/content/sha256/" name, ".config")
    }
    # An image that was started by its number has no name.
    if (image ~ /^(sha256:)?[0-9a-f]+$/ || image ~ /[ \t\n]/) image = ""
}

# The image's number, by the records of the library that Podman and CRI-O have in common.
function stored(file, id,    text, at, rows, i, about, kept) {
    text = contents(file)
    # Without the rows of the other containers.
    at = index(text, "{\"id\":\"" id "\"")
    if (at) text = before("[" substr(text, at), "},{\"id\":", "")
    if (!walk(text, rows)) return ""
    for (i = 0; ("." i ".id") in rows; i++)
        if (rows["." i ".id"] == id) {
            kept = rows["." i ".image"]
            if (image == "" && walk(rows["." i ".metadata"], about)) image = about[".image-name"]
            return kept
        }
    return ""
}

function take_image(file, at,    config, i) {
    file = contents(file)
    if (file == "") return
    walk(before(file, ",\"history\":[", "\"config\":{"), config)
    if (labels == "") labels = config[at ".Labels." INJECT]
    variables = "\\0000" # It has none, which is known, too.
    for (i = 0; (at ".Env." i) in config; i++)
        variables = variables escaped(config[at ".Env." i]) "\\0000"
}

# Whether a line of the file matches: a name, with or without the registry, in which * is any text.
function is_left_out(name,    lines, n, i, short) {
    if (name == "" || left_out == "") return 0
    short = name
    sub(/^docker\.io\/(library\/)?/, "", short)
    n = split(contents(left_out), lines, "\n")
    for (i = 1; i <= n; i++) {
        gsub(/^[ \t]+|[ \t\r]+$/, "", lines[i])
        if (lines[i] == "" || lines[i] ~ /^#/) continue
        if (matches(name, lines[i]) || matches(short, lines[i])) return 1
    }
    return 0
}

function matches(name, pattern,    piece, n, i, at) {
    n = split(pattern, piece, "*")
    if (n == 1) return name == pattern
    if (substr(name, 1, length(piece[1])) != piece[1]) return 0
    name = substr(name, length(piece[1]) + 1)
    for (i = 2; i < n; i++) {
        if (piece[i] == "") continue
        at = index(name, piece[i])
        if (!at) return 0
        name = substr(name, at + length(piece[i]))
    }
    return length(name) >= length(piece[n]) && substr(name, length(name) - length(piece[n]) + 1) == piece[n]
}

# --- Text

function say(word, value) {
    # A path that has one would be two lines.
    if (value !~ /\n/) print word " " value
}

function fail(why) {
    print why
    exit 1
}

# All of a file, "" if it can't be read.
function contents(file,    text, part, between) {
    while ((getline part <file) > 0) {
        text = text between part
        between = RS
    }
    close(file)
    return text
}

# The part of a JSON text before a key, or all of it if a wanted key comes behind that one. No quote
# in a string of JSON is without a backslash, so the text of a key is nothing else.
function before(text, key, wanted,    at, word, n, i) {
    at = index(text, key)
    if (!at) return text
    n = split(wanted, word, " ")
    for (i = 1; i <= n; i++) if (index(substr(text, at), word[i])) return text
    return substr(text, 1, at - 1)
}

# By hand, because each awk has its own rules for a backslash in gsub.
function escaped(value,    done, at) {
    while ((at = match(value, /[\\\n]/)) > 0) {
        done = done substr(value, 1, at - 1) (substr(value, at, 1) == "\n" ? "\\n" : "\\\\")
        value = substr(value, at + 1)
    }
    return done value
}

# Fills found with each string of a JSON text, by its path: ".process.env.0". Returns how many.
function walk(text, found,    part, n, i, j, outside, c, depth, prefix, kind, key, item, word, total) {
    split("", found)
    n = split(text, part, "\"")
    i = 1
    while (i <= n) {
        outside = part[i++]
        # Nearly all are this one.
        if (outside != ":") for (j = 1; j <= length(outside); j++) {
            c = substr(outside, j, 1)
            if (c == "{" || c == "[") {
                prefix[depth + 1] = depth ? prefix[depth] "." key[depth] : ""
                kind[++depth] = c
                key[depth] = c == "[" ? 0 : ""
                item[depth] = c == "["
            } else if (c == ",") {
                if (kind[depth] == "[") key[depth]++
                else item[depth] = 0
            } else if ((c == "}" || c == "]") && depth > 0) depth--
        }
        if (i > n) break
        word = part[i++]
        while (match(word, /\\+$/) && RLENGTH % 2 && i <= n) word = word "\"" part[i++]
        if (index(word, "\\")) word = unescaped(word)
        if (item[depth]) {
            found[prefix[depth] "." key[depth]] = word
            total++
        } else {
            key[depth] = word
            item[depth] = 1
        }
    }
    return total
}

function unescaped(text,    done, at, c, code, low) {
    while ((at = index(text, "\\")) > 0) {
        done = done substr(text, 1, at - 1)
        c = substr(text, at + 1, 1)
        text = substr(text, at + 2)
        if (c == "u") {
            code = hex(substr(text, 1, 4))
            text = substr(text, 5)
            if (code >= 55296 && code < 56320 && text ~ /^\\u[dD][c-fC-F]/) {
                low = hex(substr(text, 3, 4))
                code = 65536 + (code - 55296) * 1024 + low - 56320
                text = substr(text, 7)
            }
            done = done utf8(code)
        } else if (c == "n") done = done "\n"
        else if (c == "t") done = done "\t"
        else if (c == "r") done = done "\r"
        else if (c == "b") done = done "\b"
        else if (c == "f") done = done "\f"
        else done = done c
    }
    return done text
}

function hex(digits,    i, value) {
    for (i = 1; i <= 4; i++) value = value * 16 + index("0123456789abcdef", tolower(substr(digits, i, 1))) - 1
    return value
}

# LC_ALL=C, so that %c is a byte.
function utf8(code) {
    if (code < 128) return sprintf("%c", code)
    if (code < 2048) return sprintf("%c%c", 192 + int(code / 64), 128 + code % 64)
    if (code < 65536)
        return sprintf("%c%c%c", 224 + int(code / 4096), 128 + int(code / 64) % 64, 128 + code % 64)
    return sprintf("%c%c%c%c", 240 + int(code / 262144), 128 + int(code / 4096) % 64, \
        128 + int(code / 64) % 64, 128 + code % 64)
}

# Of a text of ASCII, as storage names the file of an image's configuration.
function base64(text,    letters, codes, i, n, bits, done) {
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    codes = ":0123456789abcdefhs"
    for (i = 1; i <= length(text); i += 3) {
        bits = ascii(substr(text, i, 1)) * 65536 + ascii(substr(text, i + 1, 1)) * 256 \
            + ascii(substr(text, i + 2, 1))
        for (n = 262144; n >= 1; n /= 64) done = done substr(letters, int(bits / n) % 64 + 1, 1)
    }
    n = length(text) % 3
    return n ? substr(done, 1, length(done) - 3 + n) substr("==", n) : done
}

function ascii(c) {
    if (c == "") return 0
    if (c == ":") return 58
    if (c ~ /[0-9]/) return 48 + c
    return 96 + index("abcdefghijklmnopqrstuvwxyz", c)
}
