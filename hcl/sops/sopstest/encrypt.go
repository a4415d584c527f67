// Package sopstest encrypts files of secrets as the command sops does, for tests.
package sopstest

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"hash"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"filippo.io/age"
	"filippo.io/age/armor"
	"go.yaml.in/yaml/v3"
)

// Options say how a file is encrypted.
type Options struct {
	Recipients []string // of age
	Clear      string   // unencrypted_regex: names whose values are left in the clear; "" for none
	Damage     func(meta map[string]any)
}

// NewKey makes an age identity.
func NewKey() (secret, recipient string, err error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return "", "", err
	}
	return id.String(), id.Recipient().String(), nil
}

// Encrypt encrypts a document of maps, lists and scalars. Comments are dropped.
func Encrypt(plain string, o Options) ([]byte, error) {
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	gcm, err := cipher.NewGCMWithNonceSize(block, 32)
	if err != nil {
		return nil, err
	}
	e := &encrypter{gcm: gcm, sum: sha512.New()}
	meta := map[string]any{"version": "3.13.3", "lastmodified": time.Now().UTC().Format(time.RFC3339)}
	if o.Clear != "" {
		meta["unencrypted_regex"] = o.Clear
		if e.clear, err = regexp.Compile(o.Clear); err != nil {
			return nil, err
		}
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(plain), &doc); err != nil {
		return nil, err
	}
	root := doc.Content[0]
	if err := e.walk(root, nil); err != nil {
		return nil, err
	}
	meta["mac"] = e.seal(fmt.Sprintf("%X", e.sum.Sum(nil)), "str", meta["lastmodified"].(string))
	var keys []map[string]string
	for _, r := range o.Recipients {
		enc, err := wrap(key, r)
		if err != nil {
			return nil, err
		}
		keys = append(keys, map[string]string{"recipient": r, "enc": enc})
	}
	meta["age"] = keys
	if o.Damage != nil {
		o.Damage(meta)
	}
	var value yaml.Node
	if err := value.Encode(meta); err != nil {
		return nil, err
	}
	root.Content = append(root.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "sops"}, &value)
	return yaml.Marshal(root)
}

// wrap encrypts the data key for a recipient.
func wrap(key []byte, recipient string) (string, error) {
	to, err := age.ParseX25519Recipient(recipient)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	a := armor.NewWriter(&b)
	w, err := age.Encrypt(a, to)
	if err != nil {
		return "", err
	}
	for _, do := range []func() error{
		func() error { _, err := w.Write(key); return err }, w.Close, a.Close,
	} {
		if err := do(); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

type encrypter struct {
	gcm   cipher.AEAD
	sum   hash.Hash
	clear *regexp.Regexp
}

func (e *encrypter) walk(n *yaml.Node, path []string) error {
	n.HeadComment, n.LineComment, n.FootComment = "", "", ""
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			k := n.Content[i]
			k.HeadComment, k.LineComment, k.FootComment = "", "", ""
			if err := e.walk(n.Content[i+1], append(slices.Clip(path), k.Value)); err != nil {
				return err
			}
		}
	case yaml.SequenceNode:
		for _, c := range n.Content {
			if err := e.walk(c, path); err != nil {
				return err
			}
		}
	case yaml.ScalarNode:
		return e.scalar(n, path)
	default:
		return fmt.Errorf("line %d: no alias can be encrypted", n.Line)
	}
	return nil
}

func (e *encrypter) scalar(n *yaml.Node, path []string) error {
	var v any
	if err := n.Decode(&v); err != nil {
		return err
	}
	text, kind := "", ""
	switch v := v.(type) {
	case nil:
		return nil
	case string:
		text, kind = v, "str"
	case int:
		text, kind = strconv.Itoa(v), "int"
	case float64:
		text, kind = strconv.FormatFloat(v, 'f', -1, 64), "float"
	case bool:
		text, kind = map[bool]string{true: "True", false: "False"}[v], "bool"
	case time.Time:
		b, err := v.MarshalText()
		if err != nil {
			return err
		}
		text, kind = string(b), "time"
	default:
		return fmt.Errorf("line %d: cannot encrypt %T", n.Line, v)
	}
	_, _ = io.WriteString(e.sum, text)
	if text == "" || e.clear != nil && slices.ContainsFunc(path, e.clear.MatchString) {
		return nil
	}
	n.SetString(e.seal(text, kind, strings.Join(path, ":")+":"))
	return nil
}

func (e *encrypter) seal(text, kind, about string) string {
	iv := make([]byte, 32)
	_, _ = rand.Read(iv)
	out := e.gcm.Seal(nil, iv, []byte(text), []byte(about))
	b64, end := base64.StdEncoding.EncodeToString, len(out)-e.gcm.Overhead()
	return fmt.Sprintf("ENC[AES256_GCM,data:%s,iv:%s,tag:%s,type:%s]", b64(out[:end]), b64(iv), b64(out[end:]), kind)
}
