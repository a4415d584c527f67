package hcl

import (
	"bytes"

	hclv2 "github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/hcl/lang"
)

// Format brings a file into the canonical layout: indentation by two spaces, aligned equals signs,
// one line break at the end. Comments and order are preserved. A file that does not parse is
// returned unchanged, with findings.
func Format(src []byte, filename string) (out []byte, found diag.List) {
	f := lang.Findings{Sources: map[string][]byte{filename: src}}
	defer func() {
		if recover() != nil {
			f.Errorf(lang.FileStart(filename), "internal error", "Formatting this file failed at %s. This is a bug in homestak-gitops: please report it with the file.", panicLocation())
			out, found = src, f.Finish(nil)
		}
	}()
	switch i := lang.Unreadable(src); {
	case len(src) > lang.MaxFile:
		f.Errorf(lang.FileStart(filename), "unreadable file", "The limit is %d MiB.", lang.MaxFile>>20)
	case i >= 0:
		f.Errorf(lang.OffsetRange(filename, src, i), "file is not UTF-8 text", "Byte %d is not valid UTF-8: save the file as UTF-8.", i)
	case f.CheckFile(filename, src):
		_, diags := hclsyntax.ParseConfig(src, filename, hclv2.InitialPos)
		f.AddDiagnostics(diags, false)
	}
	if f.List.HasErrors() {
		return src, f.Finish(nil)
	}
	out = hclwrite.Format(src)
	end := "\n" // lines end as the first one does, so that no file has two ways
	if first, _, more := bytes.Cut(out, []byte("\n")); more && bytes.HasSuffix(first, []byte("\r")) {
		end = "\r\n"
	}
	if out = bytes.TrimRight(out, " \t\r\n"); len(out) > 0 {
		out = append(out, end...)
	}
	return out, f.Finish(nil)
}
