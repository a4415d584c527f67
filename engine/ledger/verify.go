package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Proof is the result of a check of a chain of receipts. What it cannot know without a copy elsewhere: that receipts at the
// end were removed, which the ID of one of them in Expect shows; and what the holder of the key itself wrote.
type Proof struct {
	Intact   int      `json:"held"`     // as they were written
	Unsigned int      `json:"unsigned"` // of these, written by a version that did not sign; only the chain proves them
	Dropped  int      `json:"dropped"`  // removed over the limit, with a record
	Broken   []string `json:"broken"`   // "ID: why", the first broken link first
	Newest   string   `json:"newest"`   // ID, "" for none
	Keys     []string `json:"keys"`     // that signed them
}

// Expect is what a verifier knows from elsewhere.
type Expect struct {
	Keys   []string // public keys that may sign; none: those of the folder, of a file the first one in it
	Newest string   // ID of a receipt that must be there, or recorded as dropped; "": none
}

// link is one document of a chain.
type link struct {
	id   string
	text []byte
	err  error // why it cannot be read
}

// Verify checks the receipts of the ledger.
func (l *Ledger) Verify(e Expect) (Proof, error) {
	links, gaps, err := l.links("")
	known := len(e.Keys) > 0
	if err == nil && !known {
		e.Keys, err = l.Keys()
	}
	if err != nil {
		return Proof{}, fmt.Errorf("read receipts: %w", err)
	}
	return prove(links, gaps, e, known), nil
}

// links reads the documents of the chain, of receipts those from an ID on. The records of dropped ones come last: they are
// written before the receipts go.
func (l *Ledger) links(from string) (links []link, gaps [][]byte, err error) {
	ids, err := l.ids()
	if err != nil {
		return nil, nil, err
	}
	at, _ := slices.BinarySearch(ids, from)
	for _, id := range ids[at:] {
		text, err := get(l.file(id))
		links = append(links, link{id, text, err})
	}
	names, err := filepath.Glob(filepath.Join(l.chain(), "*"+droppedSuffix))
	for _, name := range names {
		text, errRead := get(name)
		gaps, err = append(gaps, text), errors.Join(err, errRead)
	}
	return links, gaps, err
}

// Export returns the documents of the chain as lines of JSON, oldest first: receipts, and records of dropped ones. VerifyFile
// checks it.
func (l *Ledger) Export() ([]byte, error) {
	links, gaps, err := l.links("")
	if err != nil {
		return nil, fmt.Errorf("read receipts: %w", err)
	}
	var out bytes.Buffer
	for _, text := range gaps {
		links = append(links, link{text: text})
	}
	for _, k := range links {
		if k.err == nil {
			k.err = json.Compact(&out, k.text)
			out.WriteByte('\n')
		}
		if k.err != nil {
			return nil, fmt.Errorf("receipt %s: %w", k.id, k.err)
		}
	}
	return out.Bytes(), nil
}

// VerifyFile checks what Export wrote.
func VerifyFile(name string, e Expect) (Proof, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return Proof{}, err
	}
	var links []link
	var gaps [][]byte
	for i, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
		var b bytes.Buffer // as it was in its own file
		var head struct {
			ID    string `json:"id"`
			First string `json:"first_dropped"`
		}
		if err := errors.Join(json.Indent(&b, line, "", "  "), json.Unmarshal(line, &head)); err != nil {
			return Proof{}, fmt.Errorf("line %d is not a receipt: %w", i+1, err)
		}
		b.WriteByte('\n')
		if head.First != "" {
			gaps = append(gaps, b.Bytes())
			continue
		}
		links = append(links, link{id: head.ID, text: b.Bytes()})
	}
	known := len(e.Keys) > 0
	for i := 0; i < len(links) && len(e.Keys) == 0; i++ {
		if r, err := readReceipt(links[i].text); err == nil && r.Key != "" {
			e.Keys = []string{r.Key}
		}
	}
	return prove(links, gaps, e, known), nil
}

// prover checks a chain from its oldest link to the newest.
type prover struct {
	Proof
	expect Expect
	gaps   map[string]*dropped // by the ID before them

	before   link
	hash     string // of before; "": unknown
	sound    bool   // before is intact
	signed   bool   // one before it has a signature
	original bool   // before is signed, and its signature holds
	key      string // that signed before
}

// prove checks the documents of a chain. known says that the keys come from elsewhere: then what no key signed proves nothing, unless a
// signed receipt follows it.
func prove(links []link, gaps [][]byte, e Expect, known bool) Proof {
	p := &prover{expect: e, gaps: map[string]*dropped{}, Proof: Proof{Broken: []string{}, Keys: []string{}}}
	for _, text := range gaps {
		d := &dropped{}
		if err := json.Unmarshal(text, d); err != nil || !p.trusts(d.Key) || !sealed(text, d.Key) {
			p.broken(d.First, "the record of the receipts removed from here on was changed, or has a foreign signature")
			continue
		}
		p.gaps[d.After] = d
		p.Dropped += d.Count
	}
	found := e.Newest == ""
	for _, k := range links {
		g := p.gap(k.id)
		found = found || k.id == e.Newest || g != nil && g.First <= e.Newest && e.Newest <= g.Last
		switch {
		case g != nil && k.id <= g.Last: // it is being removed
			if r, err := readReceipt(k.text); k.err == nil && (err != nil || r.ID != k.id || !p.trusts(r.Key) || !sealed(k.text, r.Key)) {
				p.broken(k.id, "it is recorded as removed, is here, and has no good signature")
			}
		case errors.Is(k.err, fs.ErrNotExist): // a writer removed it meanwhile, so the hash of the one before is not known
			p.before, p.hash, p.sound, p.original = link{}, "", false, false
		default:
			p.link(k, g)
		}
	}
	if !found {
		p.broken(e.Newest, "the receipt is missing: the end of the chain was cut off, or this is another chain")
	}
	if known && p.Intact > 0 && !p.signed {
		p.broken(p.before.id, "no receipt is signed, so the keys prove none")
	}
	p.Newest = p.before.id
	return p.Proof
}

func (p *prover) broken(id, why string) { p.Broken = append(p.Broken, id+": "+why) }

func (p *prover) trusts(key string) bool { return slices.Contains(p.expect.Keys, key) }

// gap is the record of those dropped directly before a link; nil if there is none.
func (p *prover) gap(id string) *dropped {
	last := p.before.id
	if !isKept(last) {
		last = ""
	}
	if g := p.gaps[last]; g != nil && (last != "" || p.before.id == "") && g.First <= id {
		return g
	}
	return nil
}

func (p *prover) link(k link, g *dropped) {
	var r Receipt
	if k.err == nil {
		r, k.err = readReceipt(k.text)
	}
	why := ""
	switch {
	case k.err != nil:
		why = k.err.Error()
	case r.ID != k.id:
		why = "the file has the receipt " + r.ID + ": it was renamed"
	case r.Signature == "" && p.signed:
		why = "it is not signed, unlike those before it"
	case r.Signature != "" && !sealed(k.text, r.Key):
		why = "it was changed after it was signed"
	case r.Signature != "" && !p.trusts(r.Key):
		why = "it is signed with a foreign key, " + r.Key
	}
	if why == "" {
		p.joins(k, &r, g)
	}
	if why != "" {
		p.broken(k.id, why)
	} else {
		p.Intact++
		if r.Signature == "" {
			p.Unsigned++
		} else if !slices.Contains(p.Keys, r.Key) {
			p.Keys = append(p.Keys, r.Key)
		}
	}
	p.signed = p.signed || r.Signature != ""
	p.before, p.hash, p.sound, p.original, p.key = k, digest(k.text), why == "", why == "" && r.Signature != "", r.Key
}

// joins checks that a receipt recorded the one before it.
func (p *prover) joins(k link, r *Receipt, g *dropped) {
	switch {
	case g != nil && r.Previous == g.Hash && (p.before.id == "" || g.Previous == p.hash):
	case p.before.id == "" && p.hash == "" && (r.Previous == "" || r.Signature == ""): // earlier versions removed the oldest without a record
	case p.before.id != "" && r.Previous == p.hash:
	case r.Previous == "" && r.Signature != "" && r.Key != p.key: // a new chain, after the data folder was lost: Keys show it
	case p.before.id == "" && len(p.Broken) == 0 && p.Intact == 0:
		p.broken(k.id, "the receipts before it are missing")
	case p.before.id == "":
	case p.original || g != nil:
		p.broken(p.before.id, "receipts between it and "+k.id+" are missing, or their order was changed")
	default: // a broken one is reported already
		if p.sound {
			p.Intact--
			p.broken(p.before.id, "it is not the predecessor that "+k.id+" recorded: it was changed, or one between them is missing")
		}
	}
}
