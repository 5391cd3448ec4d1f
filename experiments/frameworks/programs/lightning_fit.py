# requires: lightning
# mypy: ignore-errors
"""Lightning's Trainer on a compiled module."""

import lightning
import torch


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
        )

    def training_step(self, batch, _):
        inputs, labels = batch
        loss = torch.nn.functional.cross_entropy(self.layers(inputs), labels)
        print("loss", round(loss.item(), 4))
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


lightning.seed_everything(0)
data = torch.utils.data.TensorDataset(torch.randn(12, 16), torch.randint(0, 4, (12,)))
loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1)
model = torch.compile(Model(), mode="reduce-overhead")
trainer = lightning.Trainer(fast_dev_run=3, accelerator="cpu", enable_progress_bar=False)
trainer.fit(model, loader)
