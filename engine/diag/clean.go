package diag

import (
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Clean makes a text from outside safe to show: from a git server, a child, a guest, a host or a file.
// What could drive a terminal, change the order of what is read, or hide, becomes "?". Lines and tabs stay.
func Clean(s string) string {
	if plain(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unsafe(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// Line is Clean for what must stay one line: each run of space becomes one.
func Line(s string) string {
	return strings.Join(strings.Fields(Clean(strings.ReplaceAll(s, "\r", " "))), " ")
}

// Escape is Clean for a value that must stay recognisable: what is unsafe is written as Go writes it.
func Escape(s string) string {
	if plain(s) && !strings.ContainsAny(s, "\n\t") {
		return s
	}
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return s
	}
	q := strconv.Quote(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

// JSON makes a document in JSON safe to show, without changing what it says: what is unsafe can only be in its
// strings, and is escaped there.
func JSON(document []byte) []byte {
	text := string(document)
	if plain(text) {
		return document
	}
	var out []byte
	for _, r := range text {
		switch {
		case r == '\n' || r == '\t' || r == '\r' || !unsafe(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			first, second := utf16.EncodeRune(r)
			out = appendHex(appendHex(out, first), second)
		default:
			out = appendHex(out, r)
		}
	}
	return out
}

func appendHex(out []byte, r rune) []byte {
	digits := strconv.FormatUint(uint64(r)|0x10000, 16)
	return append(append(out, `\u`...), digits[1:]...)
}

// Screen is a writer in front of a terminal or a file that people read. It is the last resort: texts from
// outside are cleaned where they are put into a sentence. It leaves the program's own colours and movements of
// the cursor alone (ESC [ numbers and one letter, and a carriage return), and cleans everything else.
func Screen(w io.Writer) io.Writer { return screen{w} }

type screen struct{ w io.Writer }

// Unwrap is the writer behind the screen, for those who ask what it is.
func (s screen) Unwrap() io.Writer { return s.w }

func (s screen) Write(b []byte) (int, error) {
	text := string(b)
	if plain(text) {
		return s.w.Write(b)
	}
	var out strings.Builder
	for text != "" {
		at := strings.IndexAny(text, "\x1b\r")
		if at < 0 {
			break
		}
		out.WriteString(Clean(text[:at]))
		n := own(text[at:])
		if n == 0 {
			out.WriteByte('?')
			n = 1
		} else {
			out.WriteString(text[at : at+n])
		}
		text = text[at+n:]
	}
	out.WriteString(Clean(text))
	if _, err := io.WriteString(s.w, out.String()); err != nil {
		return 0, err
	}
	return len(b), nil
}

// own is the length of a control sequence of the program itself; 0 if it is another one.
func own(s string) int {
	if s[0] == '\r' {
		return 1
	}
	if !strings.HasPrefix(s, "\x1b[") {
		return 0
	}
	for i := 2; i < len(s) && i < 16; i++ {
		switch c := s[i]; {
		case c >= '0' && c <= '9' || c == ';':
		case strings.IndexByte("mKHJA", c) >= 0:
			return i + 1
		default:
			return 0
		}
	}
	return 0
}

// plain is the usual case: ASCII without control characters.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c >= 0x7f || c < ' ' && c != '\n' && c != '\t' {
			return false
		}
	}
	return true
}

// unsafe reports whether a character must not be printed: C0, DEL and C1, bidirectional marks and isolates, other
// invisible characters, and line separators except newline. The two joiners are part of words and emojis.
func unsafe(r rune) bool {
	return r != 0x200c && r != 0x200d && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}

// ShortLine is Line with at most that many bytes of the text, and "…" if there is more.
func ShortLine(s string, most int) string {
	s = Line(s)
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
