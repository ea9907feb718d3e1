package holder_test

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/densityops/oooi/holder"
)

func TestNewSaysWhatIsWrong(t *testing.T) {
	key := must(holder.LoadKey(t.TempDir()))
	registry := prometheus.NewRegistry()
	good := holder.Config{Log: slog.New(slog.DiscardHandler), Identity: "a", Interface: "vlan0", Key: key, Registerer: registry}
	if _, err := holder.New(good); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		change func(*holder.Config)
		want   string
	}{
		{func(c *holder.Config) { c.Identity = "" }, `holder: identity "": it must have 1 to 253 characters`},
		{func(c *holder.Config) { c.Identity = strings.Repeat("n", 254) }, "it must have 1 to 253 characters"},
		{func(c *holder.Config) { c.Interface = "" }, "holder: no interface is named"},
		{func(c *holder.Config) { c.Key = nil }, "holder: there is no key to sign with"},
		{func(*holder.Config) {}, "holder: metrics: "}, // they are registered already
	} {
		config := good
		test.change(&config)
		if _, err := holder.New(config); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, want %q", err, test.want)
		}
	}
}

func TestLoadKey(t *testing.T) {
	folder := t.TempDir()
	key := must(holder.LoadKey(folder))
	if again := must(holder.LoadKey(folder)); !bytes.Equal(key, again) {
		t.Error("a process that is started anew has another key")
	}
	if other := must(holder.LoadKey(t.TempDir())); bytes.Equal(key, other) {
		t.Error("two pods have one key")
	}
	if info := must(os.Stat(folder + "/holder.key")); info.Mode().Perm() != 0o600 {
		t.Errorf("the key can be read by others: %v", info.Mode())
	}
	if _, err := holder.LoadKey(folder + "/nowhere"); err == nil || !strings.HasPrefix(err.Error(), "key of the holder: ") {
		t.Errorf("error %v", err)
	}
}
