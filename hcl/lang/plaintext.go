package lang

import (
	"bytes"
	"regexp"
	"strings"

	hclv2 "github.com/hashicorp/hcl/v2"

	"github.com/homestak/homestak-gitops/engine/model"
)

// PlaintextSecret is the prefix of a finding about a plaintext secret.
const PlaintextSecret = "plaintext secret: "

// PlaintextDetail says what to do about it.
const PlaintextDetail = "Everyone who can read the repository has it now, and its history keeps it: revoke it, " +
	"put a new one into the secrets file, and write secret.SECTION.KEY here."

// Patterns of secrets anywhere in a file, comments included.
var (
	keyBegin  = regexp.MustCompile(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----`)
	keyEnd    = regexp.MustCompile(`-----END [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----`)
	ageKey    = regexp.MustCompile(`AGE-SECRET-KEY-1[A-Z0-9]{8,}`)
	pveToken  = regexp.MustCompile(`[\w.+-]+@[\w.-]+![\w.-]+=[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`)
	urlLogin  = regexp.MustCompile(`://[^/\s"$:@]*:[^/\s"$@]+@`)
	assigned  = regexp.MustCompile(`^(\s*"?[\w-]*(?:token|password|passwd|secret|key)"?\s*[=:]\s*)".*`)
	within    = regexp.MustCompile(`([{,]\s*"?[\w-]*(?:token|password|passwd|secret)"?\s*[=:]\s*)".*`)
	keyHint   = []byte("PRIVATE KEY")
	ageHint   = []byte("AGE-SECRET-KEY-1")
	tokenHint = []byte("!")
	loginHint = []byte("@")
)

// FindSecrets finds secrets in a file, by their form.
func (f *Findings) FindSecrets(name string, src []byte) {
	for _, pattern := range []struct {
		hint []byte
		re   *regexp.Regexp
		what string
	}{
		{keyHint, keyBegin, "a private key"},
		{ageHint, ageKey, "an age identity"},
		{tokenHint, pveToken, "an API token"},
		{loginHint, urlLogin, "the password of a URL"},
	} {
		if !bytes.Contains(src, pattern.hint) {
			continue
		}
		for _, hit := range pattern.re.FindAllIndex(src, MaxFindings) {
			at := OffsetRange(name, src, hit[0])
			f.Errorf(at, PlaintextSecret+pattern.what+" in the file", PlaintextDetail)
		}
	}
}

// maxCode bounds the source line of a finding, in bytes.
const maxCode = 4096

// sourceCode returns the source line at an offset with everything masked that looks like a secret:
// a finding must not repeat the secret. It returns the beginning of a long line, or nothing if the
// offset is not in it.
func sourceCode(src []byte, offset int, keys bool) string {
	line, start := sourceLine(src, offset)
	switch {
	case offset-start > maxCode:
		return ""
	case keys && insideKey(src, start):
		return model.Sensitive
	}
	line = line[:min(len(line), maxCode+512)] // no secret is cut in two at the end of what is shown
	line = assigned.ReplaceAll(line, []byte(`${1}"`+model.Sensitive+`"`))
	line = within.ReplaceAll(line, []byte(`${1}"`+model.Sensitive+`"`))
	code := mask(string(bytes.ToValidUTF8(line, []byte("?"))))
	return strings.ToValidUTF8(code[:min(len(code), maxCode)], "")
}

// mask hides what looks like a secret in a text.
func mask(s string) string {
	if !strings.ContainsAny(s, "@!") && !strings.Contains(s, string(ageHint)) {
		return s
	}
	s = ageKey.ReplaceAllString(s, model.Sensitive)
	s = pveToken.ReplaceAllString(s, model.Sensitive)
	return urlLogin.ReplaceAllString(s, "://"+model.Sensitive+"@")
}

// insideKey reports whether an offset is inside a private key.
func insideKey(src []byte, offset int) bool {
	const longest = 16 << 10 // no private key has more lines than that
	before := src[max(0, offset-longest):offset]
	begins := keyBegin.FindAllIndex(before, -1)
	return len(begins) > 0 && !keyEnd.Match(before[begins[len(begins)-1][1]:])
}

// RefuseLiteral reports a literal value of an attribute for secrets, unless the value was already
// reported.
func (f *Findings) RefuseLiteral(at hclv2.Range, name string) {
	for _, d := range f.List {
		if d.At.File == at.Filename && at.Start.Byte <= d.At.Start.Byte && d.At.Start.Byte < at.End.Byte && strings.HasPrefix(d.Summary, PlaintextSecret) {
			return
		}
	}
	f.Errorf(at, PlaintextSecret+name+" is written in the files", PlaintextDetail)
}
