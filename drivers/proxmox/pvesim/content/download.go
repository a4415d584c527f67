package content

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// Download says what a download from some addresses fetches.
type Download struct {
	// Pattern is an address in which * stands for any run of characters, slashes too.
	Pattern string
	Page    Page
	Sized   bool // Only the size is said; all else is invented as ever.
}

// ParseDownload reads the text form of a rule, "URL-PATTERN [status=N] [file=PATH]
// [size=BYTES]": a status from 400 on, which the server answers instead of a file; the file
// that is fetched, of which checksums and format are then as they are; or how large the
// fetched file is. The file is read at once. The error names what is wrong with the text.
func ParseDownload(text string) (Download, error) {
	fields := strings.Fields(text)
	if len(fields) < 2 {
		return Download{}, fmt.Errorf("download %q: want URL-PATTERN and one of status=N, file=PATH, size=BYTES", text)
	}
	d := Download{Pattern: fields[0]}
	said := map[string]string{}
	for _, field := range fields[1:] {
		key, value, _ := strings.Cut(field, "=")
		_, twice := said[key]
		switch {
		case key != "status" && key != "file" && key != "size":
			return Download{}, fmt.Errorf("download %q: %q is none of status=N, file=PATH, size=BYTES", text, field)
		case twice:
			return Download{}, fmt.Errorf("download %q: %s is there twice", text, key)
		}
		said[key] = value
	}
	if len(said) > 1 {
		return Download{}, fmt.Errorf("download %q: want only one of status, file and size: an error has no file, and a file has its own size", text)
	}
	if err := d.set(said); err != nil {
		return Download{}, fmt.Errorf("download %q: %w", text, err)
	}
	return d, nil
}

func (d *Download) set(said map[string]string) (err error) {
	for key, value := range said {
		switch key {
		case "status":
			n, err := strconv.Atoi(value)
			if err != nil || http.StatusText(n) == "" {
				return fmt.Errorf("status %q is none of HTTP", value)
			}
			if n < 400 {
				return fmt.Errorf("status %d has no effect: want one from 400 on", n)
			}
			d.Page.Missing = strconv.Itoa(n) + " " + http.StatusText(n)
		case "size":
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil || n < 0 {
				return fmt.Errorf("size %q is not a number of bytes, 0 or more", value)
			}
			d.Page.Size, d.Sized = n, true
		case "file":
			d.Page, err = pageOfFile(value)
		}
	}
	return err
}

func pageOfFile(name string) (p Page, err error) {
	f, err := os.Open(name)
	if err != nil {
		return Page{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if p, err = PageOf(f); err != nil {
		return Page{}, fmt.Errorf("reading the file: %w", err)
	}
	return p, nil
}

// Matches says whether the rule is about an address.
func (d Download) Matches(address string) bool {
	parts := strings.Split(d.Pattern, "*")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return regexp.MustCompile(`(?s)^` + strings.Join(parts, ".*") + `$`).MatchString(address)
}
