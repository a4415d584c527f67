package sops

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"filippo.io/age"
	"filippo.io/age/armor"
	"go.yaml.in/yaml/v3"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// keySize is the size of the data key, in bytes: AES-256.
const keySize = 32

// onlyEncrypted begins what the MAC is made of where it covers encrypted values only, so that it
// never equals the MAC of all values: SHA-256 of "sops" (SOPS, sops.go, MACOnlyEncryptedInitialization).
const onlyEncrypted = "8a3fd2ad54ce66527b1034f3d147be0b0b975b3bf44f72c6fdadec8176f27d69"

// Decrypt replaces every encrypted value by its plaintext, if an identity is a recipient and the
// MAC is correct; otherwise no value changes. The file must have been parsed without errors. If no
// identity matches, the result is a warning that lists the identities.
func (f *File) Decrypt(keys *Keys) diag.List {
	key, err := f.dataKey(keys)
	switch {
	case errors.Is(err, errNoIdentity):
		return diag.List{diag.Warnf(f.at(f.keysLine), f.name+" cannot be decrypted here", "%s", f.noIdentity(keys))}
	case err != nil:
		return diag.List{diag.Errorf(f.at(f.keysLine), "the data key of "+f.name+" is damaged", "%s %s", sentence(err), wholeHint)}
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return diag.List{diag.Errorf(f.at(f.keysLine), "the data key of "+f.name+" is damaged", "%s", sentence(err))}
	}
	var found diag.List
	plain := make([]any, len(f.scalars))
	sum := newSum(f.onlyEnc)
	for i, l := range f.scalars {
		v, err := l.open(block)
		if err != nil && len(found) < maxFound {
			found = append(found, diag.Errorf(f.at(l.node.Line), spell(l.path)+" cannot be decrypted", "%s %s", sentence(err), wholeHint))
		}
		plain[i] = v
		if l.value != nil || !f.onlyEnc {
			writeSum(sum, v)
		}
	}
	if len(found) > 0 {
		return found
	}
	mac, err := f.mac.decrypt(block, f.macAbout)
	want := strings.ToUpper(hex.EncodeToString(sum.Sum(nil)))
	if err != nil || subtle.ConstantTimeCompare(mac, []byte(want)) == 0 {
		return diag.List{diag.Errorf(f.at(f.macLine), "the MAC of "+f.name+" does not match",
			"The file was changed after sops wrote it, perhaps by a merge. None of its values is used.\n"+
				"Restore the file from the last good commit, and make the change again: sops edit FILE.")}
	}
	for i, l := range f.scalars {
		if l.value != nil {
			fill(l.node, plain[i])
		}
	}
	dropComments(f.Root)
	return nil
}

func newSum(onlyEnc bool) hash.Hash {
	sum := sha512.New()
	if onlyEnc {
		begin, _ := hex.DecodeString(onlyEncrypted)
		sum.Write(begin)
	}
	return sum
}

var (
	errNoIdentity = errors.New("no identity is one of the recipients")
	errSize       = errors.New("what is encrypted for a recipient is not a key of AES-256")
)

// dataKey decrypts the key of all values.
func (f *File) dataKey(keys *Keys) ([]byte, error) {
	ids := keys.identities()
	if len(f.groups) == 1 {
		return f.groups[0].decrypt(ids, keySize)
	}
	var shares [][]byte
	failed := errNoIdentity
	for _, g := range f.groups {
		share, err := g.decrypt(ids, keySize+1) // and its point
		switch {
		case err == nil:
			shares = append(shares, share)
		case errors.Is(err, errSize):
			return nil, err
		case !errors.Is(err, errNoIdentity):
			failed = err
		}
	}
	if len(shares) < f.needed {
		return nil, failed
	}
	return combine(shares)
}

// decrypt returns what a group has, if one of the identities is a recipient of it.
func (g group) decrypt(ids []age.Identity, size int) ([]byte, error) {
	if len(ids) == 0 {
		return nil, errNoIdentity
	}
	err := errNoIdentity
	for _, k := range g {
		key, kerr := unwrap(k.armored, ids, size)
		if kerr == nil || errors.Is(kerr, errSize) {
			return key, kerr
		}
		if _, other := errors.AsType[*age.NoIdentityMatchError](kerr); !other {
			err = fmt.Errorf("what is encrypted for %s cannot be read", short(k.recipient))
		}
	}
	return nil, err
}

func unwrap(armored string, ids []age.Identity, size int) ([]byte, error) {
	r, err := age.Decrypt(armor.NewReader(strings.NewReader(armored)), ids...)
	if err != nil {
		return nil, err
	}
	key, err := io.ReadAll(io.LimitReader(r, int64(size)+1))
	if err == nil && len(key) != size {
		err = errSize
	}
	return key, err
}

// comment is a comment, which the MAC does not cover.
type comment struct{}

// open is the plaintext of a value, as the type that it has.
func (l *leaf) open(block cipher.Block) (any, error) {
	if l.value == nil {
		var v any
		if err := l.node.Decode(&v); err != nil {
			return nil, errors.New("it is not a value of YAML")
		}
		switch v.(type) {
		case string, int, float64, bool, time.Time:
			return v, nil
		}
		return nil, errors.New("SOPS has no type for it")
	}
	text, err := l.value.decrypt(block, strings.Join(l.path, ":")+":")
	if err != nil {
		return nil, err
	}
	// An error of the conversion would repeat the text.
	var v any
	switch l.value.kind {
	case "str":
		return string(text), nil
	case "comment":
		if !l.inList {
			return nil, errors.New("a comment is in the place of a value")
		}
		return comment{}, nil
	case "int":
		v, err = strconv.Atoi(string(text))
	case "float":
		v, err = strconv.ParseFloat(string(text), 64)
	case "bool":
		v, err = strconv.ParseBool(string(text))
	case "time":
		var at time.Time
		err = at.UnmarshalText(text)
		v = at
	default:
		return nil, fmt.Errorf("its type %q is unknown", clip(l.value.kind, maxShown))
	}
	if err != nil {
		return nil, fmt.Errorf("its type is %s, and what was encrypted is not", l.value.kind)
	}
	return v, nil
}

// decrypt returns the plaintext; about is bound to the value: its path, or the time of the MAC.
func (v *value) decrypt(block cipher.Block, about string) ([]byte, error) {
	gcm, err := cipher.NewGCMWithNonceSize(block, len(v.iv))
	if err != nil {
		return nil, errors.New("its iv is not valid")
	}
	text, err := gcm.Open(nil, v.iv, v.data, []byte(about))
	if err != nil {
		return nil, errors.New("it was changed since it was encrypted, or comes from another file or entry")
	}
	return text, nil
}

// writeSum adds a value to the MAC, as SOPS writes its type (sops.go, ToBytes).
func writeSum(sum hash.Hash, v any) {
	switch v := v.(type) {
	case string:
		_, _ = io.WriteString(sum, v)
	case int:
		_, _ = io.WriteString(sum, strconv.Itoa(v))
	case float64:
		_, _ = io.WriteString(sum, strconv.FormatFloat(v, 'f', -1, 64))
	case bool:
		text := "False"
		if v {
			text = "True"
		}
		_, _ = io.WriteString(sum, text)
	case time.Time:
		text, _ := v.MarshalText()
		sum.Write(text)
	}
}

// sentence makes one of what an error says.
func sentence(err error) string {
	text := err.Error()
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// fill writes a decrypted value into its node.
func fill(n *yaml.Node, v any) {
	n.Style = 0
	switch v := v.(type) {
	case string:
		n.Tag, n.Value = "!!str", v
	case comment:
		n.Tag, n.Value = commentTag, ""
	case int:
		n.Tag, n.Value = "!!int", strconv.Itoa(v)
	case float64:
		n.Tag, n.Value = "!!float", strconv.FormatFloat(v, 'f', -1, 64)
	case bool:
		n.Tag, n.Value = "!!bool", strconv.FormatBool(v)
	case time.Time:
		n.Tag, n.Value = "!!timestamp", v.Format(time.RFC3339Nano)
	}
}

const commentTag = "!comment"

// dropComments removes from lists the elements that were comments before they were encrypted.
func dropComments(n *yaml.Node) {
	if n.Kind == yaml.SequenceNode {
		n.Content = slices.DeleteFunc(n.Content, func(c *yaml.Node) bool { return c.Kind == yaml.ScalarNode && c.Tag == commentTag })
	}
	for _, c := range n.Content {
		dropComments(c)
	}
}

// noIdentity says why a file cannot be decrypted here, and what to do about it.
func (f *File) noIdentity(keys *Keys) string {
	var b bytes.Buffer
	const most = 8
	var names []string
	all := f.Recipients()
	for i, r := range all {
		if i == most {
			names = append(names, fmt.Sprintf("%d more", len(all)-most))
			break
		}
		names = append(names, short(r))
	}
	fmt.Fprintf(&b, "It is encrypted for %s.\n", strings.Join(names, ", "))
	if len(f.groups) > 1 {
		fmt.Fprintf(&b, "They form %d groups; %d of them must each have an identity here.\n", len(f.groups), f.needed)
	}
	fmt.Fprintf(&b, "%s\n", keys.describe())
	fmt.Fprintf(&b, "The names of the secrets are known, but not their values. A step that needs a value is not applied.\n")
	fmt.Fprintf(&b, "Set SOPS_AGE_KEY_FILE (age_key_file in agent.hcl for an agent) to a file with the identity of one of these recipients, or add a recipient on a machine that has one: sops rotate -i --add-age RECIPIENT FILE.")
	return b.String()
}

// short is a recipient in a finding. Those of some types have thousands of characters.
func short(recipient string) string {
	s := clip(recipient, maxShown)
	if quoted := strconv.Quote(s); quoted != `"`+s+`"` {
		return quoted
	}
	return s
}
