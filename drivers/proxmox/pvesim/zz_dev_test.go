package pvesim

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"sort"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

type devStory struct {
	Start struct {
		RootToken string `json:"root_token"`
		Storages  []struct {
			Storage, Type, Path string
			Content             []string
		}
	}
	Files map[string]struct {
		Size           int
		Encoding, Data string
		File           string
	}
	Vars []struct {
		Name, Recorded, At, Match string
		Exchange                  int
	}
	Exchanges []struct {
		Note    string
		PauseS  float64 `json:"pause_s"`
		Sync    string
		Until   string
		Loose   []string
		Request struct {
			Method, Path string
			Headers      map[string]string
			Form         [][]any
			JSON         json.RawMessage
			RawBody      *string `json:"raw_body"`
			Upload       *struct {
				Fields   [][]any
				Filename string
				File     string
			}
		}
		Response struct {
			Status  int
			Reason  string
			Body    any
			BodyRaw *string `json:"body_raw"`
			Headers []string
		}
	}
}

func TestDev(t *testing.T) {
	name := os.Getenv("STORY")
	if name == "" {
		t.Skip("dev")
	}
	raw, err := os.ReadFile("/work/shared/pve-recordings/stories/" + name + ".json")
	if err != nil {
		raw, err = os.ReadFile("/work/shared/pve-recordings/" + name + ".json")
	}
	if err != nil {
		t.Fatal(err)
	}
	var s devStory
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { devReplay(t, s) })
}

func str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case float64:
		b, _ := json.Marshal(v)
		if v == float64(int64(v)) {
			return fmt.Sprintf("%d", int64(v))
		}
		return string(b)
	}
	return fmt.Sprint(v)
}

func devReplay(t *testing.T, s devStory) {
	if s.Start.RootToken == "" {
		s.Start.RootToken = os.Getenv("ROOT")
	}
	c := Config{Password: "Lab-throwaway-1", Node: "pve1", Version: "8.4", Token: s.Start.RootToken}
	for _, st := range s.Start.Storages {
		c.Storages = append(c.Storages, Storage{Name: st.Storage, Type: st.Type, Path: st.Path, Content: st.Content})
	}
	h := New(c)
	files := map[string][]byte{}
	for n, f := range s.Files {
		if f.Data == "" {
			b, _ := os.ReadFile("/work/shared/pve-recordings/stories/" + f.File)
			files[n] = b
			continue
		}
		z, _ := base64.StdEncoding.DecodeString(f.Data)
		r, err := zlib.NewReader(bytes.NewReader(z))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(r)
		files[n] = b
	}
	vars := map[string]string{} // recorded → actual
	idmap := map[string]string{}
	only := os.Getenv("N")
	bad := 0
	for i, e := range s.Exchanges {
		if e.PauseS > 0 {
			time.Sleep(time.Duration(e.PauseS * float64(time.Second)))
		}
		if e.Sync == "stats" {
			now := time.Now()
			time.Sleep(h.w.next.Sub(now) + time.Millisecond*100)
		}
		sub := func(x string) string {
			keys := []string{}
			for r := range vars {
				keys = append(keys, r)
			}
			sort.Slice(keys, func(i, j int) bool { return len(keys[i]) > len(keys[j]) })
			for _, r := range keys {
				x = strings.ReplaceAll(x, r, vars[r])
				x = strings.ReplaceAll(x, url.QueryEscape(r), url.QueryEscape(vars[r]))
				x = strings.ReplaceAll(x, url.PathEscape(r), url.PathEscape(vars[r]))
			}
			return x
		}
		var got map[string]any
		var rawGot string
		var resp *http.Response
		for {
			var body []byte
			ct := ""
			for k, v := range e.Request.Headers {
				if k == "Content-Type" {
					ct = v
				}
			}
			if e.Request.Form != nil {
				var parts []string
				for _, p := range e.Request.Form {
					parts = append(parts, url.QueryEscape(str(p[0]))+"="+url.QueryEscape(sub(str(p[1]))))
				}
				body = []byte(strings.Join(parts, "&"))
			}
			if e.Request.JSON != nil {
				body = []byte(sub(string(e.Request.JSON)))
			}
			if e.Request.RawBody != nil {
				body = []byte(*e.Request.RawBody)
			}
			if u := e.Request.Upload; u != nil {
				var b bytes.Buffer
				m := multipart.NewWriter(&b)
				for _, f := range u.Fields {
					_ = m.WriteField(str(f[0]), str(f[1]))
				}
				w, _ := m.CreateFormFile("filename", u.Filename)
				_, _ = w.Write(files[u.File])
				_ = m.Close()
				body = b.Bytes()
				ct = m.FormDataContentType()
			}
			var rd io.Reader
			if body != nil {
				rd = bytes.NewReader(body)
			}
			req, err := http.NewRequest(e.Request.Method, "https://pve1:8006"+sub(e.Request.Path), rd)
			if err != nil {
				t.Fatal(i, err)
			}
			for k, v := range e.Request.Headers {
				req.Header.Set(k, sub(v))
			}
			if ct != "" {
				req.Header.Set("Content-Type", ct)
			}
			resp, err = h.RoundTrip(req)
			if err != nil {
				t.Fatal(i, err)
			}
			b, _ := io.ReadAll(resp.Body)
			rawGot = string(b)
			got = nil
			_ = json.Unmarshal(b, &got)
			if e.Until == "stopped" && got != nil {
				if d, ok := got["data"].(map[string]any); ok && d["status"] == "running" {
					time.Sleep(100 * time.Millisecond)
					continue
				}
			}
			break
		}
		for _, v := range s.Vars {
			if v.Exchange != i {
				continue
			}
			var at any = map[string]any(got)
			for _, p := range strings.Split(strings.TrimPrefix(v.At, "/"), "/") {
				switch x := at.(type) {
				case map[string]any:
					at = x[p]
				case []any:
					var n int
					fmt.Sscan(p, &n)
					if n < len(x) {
						at = x[n]
					}
				}
			}
			val, _ := at.(string)
			if v.Match != "" {
				val = regexp.MustCompile(v.Match).FindString(val)
			}
			if val != "" {
				vars[v.Recorded] = val
				idmap[v.Recorded] = val
			}
		}
		var diffs []string
		note := func(f string, a ...any) { diffs = append(diffs, fmt.Sprintf(f, a...)) }
		w := e.Response
		if resp.StatusCode != w.Status {
			note("status got %d want %d", resp.StatusCode, w.Status)
		}
		loose := strings.Join(e.Loose, ",")
		reason := strings.TrimPrefix(resp.Status, fmt.Sprintf("%d ", resp.StatusCode))
		if !strings.Contains(loose, "reason") && reason != sub(w.Reason) {
			note("reason got %q want %q", reason, w.Reason)
		}
		var conn []string
		for _, hl := range w.Headers {
			if strings.HasPrefix(hl, "Connection: ") {
				conn = append(conn, strings.TrimPrefix(hl, "Connection: "))
			}
		}
		if fmt.Sprint(conn) != fmt.Sprint(resp.Header["Connection"]) {
			note("connection got %v want %v", resp.Header["Connection"], conn)
		}
		if w.BodyRaw != nil {
			if rawGot != *w.BodyRaw {
				note("raw body got %q want %q", rawGot, *w.BodyRaw)
			}
		} else {
			if !strings.Contains(loose, "message") {
				devCompare(note, "", got, w.Body, sub, idmap, e.Request.Path)
			}
		}
		if len(diffs) > 0 && (only == "" || only == fmt.Sprint(i)) {
			bad++
			t.Errorf("#%d %s %s (%s)\n   %s", i, e.Request.Method, e.Request.Path, e.Note, strings.Join(diffs, "\n   "))
			if only != "" {
				t.Log(rawGot)
			}
		}
	}
	t.Logf("%d of %d differ; unimplemented %v", bad, len(s.Exchanges), h.Snapshot().Unimplemented)
}

var devSkip = map[string]bool{"pid": true, "pstart": true, "starttime": true, "endtime": true, "ctime": true, "used": true, "avail": true, "blockstat": true, "nics": true, "ballooninfo": true, "proxmox-support": true, "running-qemu": true, "running-machine": true, "total": true, "used_fraction": true, "ssl_fingerprint": true}
var devRun = map[string]bool{"cpu": true, "mem": true, "disk": true, "netin": true, "netout": true, "diskread": true, "diskwrite": true, "uptime": true, "swap": true, "freemem": true}
var devID = regexp.MustCompile(`UPID:[^ ,"]*:|[0-9a-f]{40}|BC:24:11(:[0-9A-F]{2}){3}|bc:24:11(:[0-9a-f]{2}){3}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|ctime=\d+|creation-qemu=[\d.]+|PVE:.*|^[0-9A-F]{8}:[A-Za-z0-9+/]{43}$`)

func devCompare(note func(string, ...any), path string, got, want any, sub func(string) string, ids map[string]string, req string) {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			note("%s: got %v want object", path, got)
			return
		}
		for k, v := range w {
			gv, ok := g[k]
			if !ok {
				note("%s/%s missing, want %v", path, k, v)
				continue
			}
			if devSkip[k] && fmt.Sprintf("%T", gv) == fmt.Sprintf("%T", v) {
				continue
			}
			if devRun[k] && w["status"] != "stopped" && fmt.Sprintf("%T", gv) == fmt.Sprintf("%T", v) {
				continue
			}
			devCompare(note, path+"/"+k, gv, v, sub, ids, req)
		}
		for k := range g {
			if _, ok := w[k]; !ok {
				note("%s/%s extra: %v", path, k, g[k])
			}
		}
	case []any:
		g, ok := got.([]any)
		if !ok {
			note("%s: got %v want list", path, got)
			return
		}
		if strings.Contains(req, "/log?") {
			if len(g) == 0 {
				note("log empty")
				return
			}
			gl := fmt.Sprint(g[len(g)-1].(map[string]any)["t"])
			wl := fmt.Sprint(w[len(w)-1].(map[string]any)["t"])
			if gl != wl {
				note("last log line got %q want %q", gl, wl)
			}
			if len(g) != len(w) {
				note("(log lines got %d want %d)", len(g), len(w))
			}
			for i := range min(len(g), len(w)) {
				if gt, wt := fmt.Sprint(g[i].(map[string]any)["t"]), fmt.Sprint(w[i].(map[string]any)["t"]); gt != wt && !strings.Contains(wt, "pveupload") {
					note("(line %d got %q want %q)", i, gt, wt)
				}
			}
			return
		}
		key := ""
		for _, k := range []string{"volid", "upid", "id", "vmid", "key", "userid", "ugid", "poolid", "name", "subdir", "tokenid", "storage", "roleid"} {
			if len(w) > 0 {
				if m, ok := w[0].(map[string]any); ok && m[k] != nil {
					key = k
					break
				}
			}
		}
		if key == "" {
			if len(g) != len(w) {
				note("%s: list got %v want %v", path, g, w)
				return
			}
			for i := range w {
				devCompare(note, fmt.Sprintf("%s[%d]", path, i), g[i], w[i], sub, ids, req)
			}
			return
		}
		find := func(l []any, id string) any {
			for _, x := range l {
				if m, ok := x.(map[string]any); ok && fmt.Sprint(m[key])+fmt.Sprint(m["path"]) == id {
					return x
				}
			}
			return nil
		}
		for _, x := range w {
			m := x.(map[string]any)
			id := sub(fmt.Sprint(m[key])) + fmt.Sprint(m["path"])
			y := find(g, id)
			if y == nil {
				note("%s[%s] missing", path, id)
				continue
			}
			devCompare(note, path+"["+id+"]", y, x, sub, ids, req)
		}
		if len(g) > len(w) {
			note("%s: %d entries, want %d: %v", path, len(g), len(w), g)
		}
	case string:
		g, ok := got.(string)
		if !ok {
			note("%s: got %v (%T) want string %q", path, got, got, w)
			return
		}
		if g == w || g == sub(w) {
			return
		}
		// ids
		wi, gi := devID.FindAllString(w, -1), devID.FindAllString(g, -1)
		if len(wi) > 0 && len(wi) == len(gi) && devID.ReplaceAllString(w, "X") == devID.ReplaceAllString(g, "X") {
			for i := range wi {
				if prev, ok := ids[wi[i]]; ok && prev != gi[i] && !strings.HasPrefix(wi[i], "ctime") && !strings.HasPrefix(wi[i], "creation") {
					note("%s: id %s was %s now %s", path, wi[i], prev, gi[i])
				}
				for k, v := range ids {
					if v == gi[i] && k != wi[i] && !strings.HasPrefix(wi[i], "ctime") && !strings.HasPrefix(wi[i], "creation") {
						note("%s: value %s stood for %s, now for %s", path, gi[i], k, wi[i])
					}
				}
				ids[wi[i]] = gi[i]
			}
			return
		}
		if strings.HasSuffix(path, "/content") && strings.Contains(w, ",") {
			a, b := strings.Split(g, ","), strings.Split(w, ",")
			sort.Strings(a)
			sort.Strings(b)
			if fmt.Sprint(a) == fmt.Sprint(b) {
				return
			}
		}
		note("%s: got %q want %q", path, g, w)
	default:
		if fmt.Sprint(got) != fmt.Sprint(want) {
			note("%s: got %v want %v", path, got, want)
		}
	}
}
