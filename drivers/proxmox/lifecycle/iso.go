package lifecycle

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"strings"
	"unicode/utf16"
)

const (
	sector = 2048
	// grain is the unit to which an image's size is rounded up, so that the size tells next
	// to nothing of what is inside; an image with files has at least two.
	grain = 64 << 10

	// The sectors of everything that stands before the files.
	primaryAt   = 16 // ECMA-119, 6.2.1: the first 16 belong to the system
	jolietAt    = 17
	endAt       = 18
	tablesAt    = 19 // path tables: primary little, primary big, Joliet little, Joliet big
	primaryRoot = 23
	jolietRoot  = 24
	extraAt     = 25 // what of the Rock Ridge fields does not fit into a record
	filesAt     = 26

	tableSize = 10 // a path table that holds only the root
)

// imageFile is one file in the root folder of an image.
type imageFile struct {
	Name string
	Data []byte
}

// newImage builds an ISO 9660 image in memory with the files in its root folder, under their own names both as Rock
// Ridge (which Linux prefers) and as Joliet. It has no dates: the same label and files always give the same bytes.
// A name has 1 to 64 of the characters a-z, 0-9, dot and dash; no two may be equal in their ISO form (upper case,
// with _ for dot and dash), and all must fit into one sector of records (about a dozen). Sources: ECMA-119, the
// Joliet specification, RRIP 1.09 and SUSP 1.09.
func newImage(label string, files []imageFile) ([]byte, error) {
	if label == "" || len(label) > 16 || strings.ContainsFunc(label, func(c rune) bool { return c < ' ' || c > '~' }) {
		return nil, fmt.Errorf("volume label %q is not possible: Joliet takes 1 to 16 characters of ASCII", label)
	}
	files = slices.Clone(files)
	sort.Slice(files, func(i, j int) bool { return plainName(files[i].Name) < plainName(files[j].Name) })
	size := filesAt
	for i, f := range files {
		if !validName(f.Name) {
			return nil, fmt.Errorf("file name %q is not possible on a seed image: use a-z, 0-9, dot and dash, at most 64", f.Name)
		}
		if i > 0 && plainName(files[i-1].Name) == plainName(f.Name) {
			return nil, fmt.Errorf("file names %q and %q are one in ISO 9660", files[i-1].Name, f.Name)
		}
		size += sectors(len(f.Data))
	}
	total := (size*sector + grain - 1) / grain * grain
	if len(files) > 0 {
		total = max(total, 2*grain)
	}
	b := builder{out: make([]byte, total), label: label}
	if err := b.folders(files); err != nil {
		return nil, err
	}
	b.descriptors()
	return b.out, nil
}

func sectors(n int) int { return (n + sector - 1) / sector }

func validName(s string) bool {
	return s != "" && len(s) <= 64 && s[0] != '.' && !strings.ContainsFunc(s, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.'
	})
}

// plainName is the name for readers that know neither extension: d-characters and a version.
func plainName(s string) string {
	up := strings.Map(func(c rune) rune {
		if c == '-' || c == '.' {
			return '_'
		}
		return c
	}, strings.ToUpper(s))
	return up[:min(len(up), 27)] + ".;1"
}

func wide(s string) []byte {
	var out []byte
	for _, u := range utf16.Encode([]rune(s)) {
		out = binary.BigEndian.AppendUint16(out, u)
	}
	return out
}

// both writes a number in both byte orders, as ISO 9660 does nearly everywhere.
func both(n int) []byte {
	u := uint32(n) //nolint:gosec // Sectors and lengths of an image that is held in memory.
	return binary.BigEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, u), u)
}

func both16(n int) []byte {
	u := uint16(n) //nolint:gosec // Constants.
	return binary.BigEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, u), u)
}

// record is a directory record (ECMA-119, 9.1); use is the system use area.
func record(name []byte, at, size int, folder bool, use []byte) []byte {
	r := []byte{0, 0}
	r = append(r, both(at)...)
	r = append(r, both(size)...)
	r = append(r, 80, 1, 1, 0, 0, 0, 0) // 1980-01-01, the oldest day that every reader takes
	flags := byte(0)
	if folder {
		flags = 2
	}
	r = append(r, flags, 0, 0)
	r = append(r, both16(1)...)
	r = append(r, byte(len(name))) //nolint:gosec // At most 64 characters.
	r = append(r, name...)
	if len(name)%2 == 0 {
		r = append(r, 0)
	}
	r = append(r, use...)
	if len(r)%2 == 1 {
		r = append(r, 0)
	}
	r[0] = byte(len(r)) //nolint:gosec // Checked by folders.
	return r
}

// px says who may read a file (RRIP 4.1.1): root alone, since it holds secrets.
func px(mode, links int) []byte {
	out := []byte{'P', 'X', 36, 1}
	for _, n := range []int{mode, links, 0, 0} {
		out = append(out, both(n)...)
	}
	return out
}

// nm returns the real name (RRIP 4.1.4).
func nm(name string) []byte {
	return append([]byte{'N', 'M', byte(5 + len(name)), 1, 0}, name...) //nolint:gosec // At most 64 characters.
}

// extension says that Rock Ridge is in use (SUSP 5.5, RRIP 4.3).
func extension() []byte {
	const id, what, where = "RRIP_1991A", "THE ROCK RIDGE INTERCHANGE PROTOCOL PROVIDES SUPPORT FOR POSIX FILE SYSTEM SEMANTICS",
		"PLEASE CONTACT DISC PUBLISHER FOR SPECIFICATION SOURCE.  SEE PUBLISHER IDENTIFIER IN PRIMARY VOLUME DESCRIPTOR FOR CONTACT INFORMATION."
	out := []byte{'E', 'R', byte(8 + len(id) + len(what) + len(where)), 1, byte(len(id)), byte(len(what)), byte(len(where)), 1}
	return append(out, id+what+where...)
}

type builder struct {
	out   []byte
	label string
}

func (b *builder) put(at int, data []byte) { copy(b.out[at*sector:], data) }

// folders writes the files and the two root folders that name them.
func (b *builder) folders(files []imageFile) error {
	er := extension()
	ce := []byte{'C', 'E', 28, 1}
	for _, n := range []int{extraAt, 0, len(er)} {
		ce = append(ce, both(n)...)
	}
	b.put(extraAt, er)
	self := slices.Concat([]byte{'S', 'P', 7, 1, 0xBE, 0xEF, 0}, px(0o040500, 2), ce)
	primary := slices.Concat(record([]byte{0}, primaryRoot, sector, true, self), record([]byte{1}, primaryRoot, sector, true, px(0o040500, 2)))
	joliet := slices.Concat(record([]byte{0}, jolietRoot, sector, true, nil), record([]byte{1}, jolietRoot, sector, true, nil))
	at := filesAt
	for _, f := range files {
		primary = append(primary, record([]byte(plainName(f.Name)), at, len(f.Data), false, slices.Concat(px(0o100400, 1), nm(f.Name)))...)
		joliet = append(joliet, record(wide(f.Name), at, len(f.Data), false, nil)...)
		b.put(at, f.Data)
		at += sectors(len(f.Data))
	}
	if len(primary) > sector || len(joliet) > sector {
		return fmt.Errorf("%d files are too many for one folder of a seed image", len(files))
	}
	b.put(primaryRoot, primary)
	b.put(jolietRoot, joliet)
	return nil
}

// descriptors writes the volume descriptors and the path tables (ECMA-119, 8 and 9.4).
func (b *builder) descriptors() {
	text := func(s string) []byte { return []byte(s) }
	b.put(primaryAt, b.descriptor(1, text, "", tablesAt, primaryRoot))
	b.put(jolietAt, b.descriptor(2, wide, "%/E", tablesAt+2, jolietRoot)) // UCS-2 level 3
	b.put(endAt, []byte("\xffCD001\x01"))
	for i, root := range []int{primaryRoot, jolietRoot} {
		b.put(tablesAt+2*i, []byte{1, 0, byte(root), 0, 0, 0, 1, 0, 0, 0})
		b.put(tablesAt+2*i+1, []byte{1, 0, 0, 0, 0, byte(root), 0, 1, 0, 0})
	}
}

func (b *builder) descriptor(kind byte, text func(string) []byte, escape string, tables, root int) []byte {
	d := make([]byte, sector)
	copy(d, "\x00CD001\x01")
	d[0] = kind
	blank := func(from, to int, s string) { // a field of text, filled up with spaces of its own width
		field := d[from:to]
		for i := 0; i < len(field); {
			i += copy(field[i:], text(" "))
		}
		copy(field, text(s))
	}
	blank(8, 40, "LINUX")
	blank(40, 72, b.label)
	copy(d[80:], both(len(b.out)/sector))
	copy(d[88:120], escape)
	copy(d[120:], both16(1))
	copy(d[124:], both16(1))
	copy(d[128:], both16(sector))
	copy(d[132:], both(tableSize))
	binary.LittleEndian.PutUint32(d[140:], uint32(tables)) //nolint:gosec // A constant.
	binary.BigEndian.PutUint32(d[148:], uint32(tables+1))  //nolint:gosec // A constant.
	copy(d[156:190], record([]byte{0}, root, sector, true, nil))
	blank(190, 813, "")
	for i := range 4 { // created, changed, expires, effective: not specified (8.4.26.1)
		copy(d[813+17*i:], "0000000000000000")
	}
	d[881] = 1
	return d
}
