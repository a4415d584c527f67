// Package fleet generates fleets for benchmarks: the files of a site with thousands of guests, and their
// configurations, copied from one guest that was really created.
//
// Benchmarks need guests with ownership tags that match down to the UUID. Creating each would take longer than the
// benchmark, so the copies have the same settings, but their own name, tag and identity.
//
// The package imports neither the program nor the simulator, so that tests of both can use it.
package fleet

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/homestak/homestak-gitops/test/released"
)

// firstVMID is the VMID of guest 1.
const firstVMID = 10001

// Fleet says how large a site is. Guests are numbered from 1.
type Fleet struct {
	Guests int
	Nodes  []string // of the cluster; the first is the one whose API is used. Default father alone.
	Files  int      // how many files, each with one manifest, the guests are declared in; default 1
}

// Access is how the host of the fleet is reached.
type Access struct {
	API         string // https://127.0.0.1:8006
	Token       string // user@realm!name=secret
	Fingerprint string // sha256:…
}

// Name is what guest n is called.
func (Fleet) Name(n int) string { return fmt.Sprintf("app-%05d", n) }

// VMID is that of guest n.
func (Fleet) VMID(n int) int { return firstVMID - 1 + n }

// Node is where guest n lives: anywhere, as guests do after years of migrations,
// but always at the same place.
func (f Fleet) Node(n int) string {
	nodes := f.nodes()
	return nodes[int(uint32(n)*2654435761>>16)%len(nodes)] // Knuth's multiplicative hash
}

func (f Fleet) nodes() []string {
	if len(f.Nodes) == 0 {
		return []string{"father"}
	}
	return f.Nodes
}

// file is the number of the file, from 1, that declares guest n.
func (f Fleet) file(n int) int {
	return 1 + (n-1)*max(f.Files, 1)/max(f.Guests, 1)
}

func manifest(file int) string { return fmt.Sprintf("fleet-%03d", file) }

// Site gives the files of the site by name.
func (f Fleet) Site(a Access) map[string]string {
	files := f.frame(a)
	text := map[int]*strings.Builder{}
	for n := 1; n <= f.Guests; n++ {
		file := f.file(n)
		if text[file] == nil {
			text[file] = &strings.Builder{}
			fmt.Fprintf(text[file], "manifest %q {\n  pattern = \"flat\"\n  host    = host.father\n", manifest(file))
		}
		fmt.Fprintf(text[file], node, f.Name(n), f.VMID(n))
	}
	for file, b := range text {
		files["manifests/"+manifest(file)+".hcl"] = b.String() + "}\n"
	}
	return files
}

// Clones gives the files of a site whose guests are all still to be made, as
// clones of the template with VMID 9000.
func (f Fleet) Clones(a Access) map[string]string {
	files := f.frame(a)
	files["manifests/clones.hcl"] = fmt.Sprintf(clones, f.Guests)
	return files
}

// frame gives the files that declare no guests.
func (f Fleet) frame(a Access) map[string]string {
	return map[string]string{
		"site.hcl":     site,
		"host.hcl":     fmt.Sprintf(host, a.API, a.Fingerprint, f.nodes()[0], strings.Join(f.nodes(), `", "`)),
		"secrets.yaml": released.Auth + fmt.Sprintf("api_tokens:\n  father: %q\nssh_keys:\n  ops: %q\n", a.Token, key),
		".gitignore":   "secrets.yaml\n",
	}
}

// Twin makes the configuration of guest n from that of guest 1, whose disks and
// cards it has under names of its own.
func (f Fleet) Twin(first map[string]string, n int) (map[string]string, error) {
	uuid := fmt.Sprintf("00000000-0000-4000-8000-%012x", n)
	one, own := fmt.Sprintf("vm-%d-", f.VMID(1)), fmt.Sprintf("vm-%d-", f.VMID(n))
	twin := make(map[string]string, len(first))
	for key, value := range first {
		switch {
		case strings.HasPrefix(key, "net"):
			value = withMAC(value, fmt.Sprintf("BC:24:%02X:%02X:%02X:%02X", n>>24&0xff, n>>16&0xff, n>>8&0xff, n&0xff))
		default:
			value = strings.ReplaceAll(value, one, own)
		}
		twin[key] = value
	}
	var err error
	twin["name"], twin["smbios1"] = f.Name(n), "uuid="+uuid
	twin["description"], err = remark(first["description"], map[string]string{
		"node": f.Name(n), "uuid": uuid, "manifest": manifest(f.file(n)),
	})
	return twin, err
}

// withMAC puts another address into a network card, model=ADDRESS,bridge=….
func withMAC(card, mac string) string {
	model, rest, _ := strings.Cut(card, "=")
	_, rest, more := strings.Cut(rest, ",")
	if more {
		rest = "," + rest
	}
	return model + "=" + mac + rest
}

// remark sets entries of the ownership tag, the JSON in the last line of a
// description.
func remark(description string, set map[string]string) (string, error) {
	text := strings.TrimRight(description, "\n")
	last := strings.LastIndexByte(text, '\n') + 1
	open := strings.IndexByte(text[last:], '{')
	if open < 0 {
		return "", fmt.Errorf("the description has no ownership tag: %q", description)
	}
	open += last
	mark := map[string]any{}
	if err := json.Unmarshal([]byte(text[open:]), &mark); err != nil {
		return "", fmt.Errorf("read the ownership tag of %q: %w", description, err)
	}
	for key, value := range set {
		mark[key] = value
	}
	line, err := json.Marshal(mark)
	if err != nil {
		return "", fmt.Errorf("write the ownership tag: %w", err)
	}
	return text[:open] + string(line), nil
}
